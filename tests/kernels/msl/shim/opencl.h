// Declarations for a check of address spaces: clang reads a kernel as "C++ for OpenCL", whose rules are Metal's once
// the generic address space is switched off. Nothing here is ever run. Same subset as metal.h.
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
typedef unsigned char uchar; typedef unsigned short ushort; typedef unsigned int uint; typedef unsigned long ulong;
#define MSL_VECTORS(T) \
  typedef T T##2 __attribute__((ext_vector_type(2))); typedef T T##3 __attribute__((ext_vector_type(3))); \
  typedef T T##4 __attribute__((ext_vector_type(4)));
MSL_VECTORS(float) MSL_VECTORS(int) MSL_VECTORS(uint)
#undef MSL_VECTORS
typedef half float16_t;
typedef half bfloat;  // who converts to it without asking is found by g++
typedef bfloat bfloat16_t;
typedef char int8_t; typedef uchar uint8_t; typedef short int16_t; typedef ushort uint16_t;
typedef int int32_t; typedef uint uint32_t; typedef long int64_t; typedef ulong uint64_t;
#define device __global
#define constant __constant
#define threadgroup __local
#define thread __private

namespace metal {
enum class mem_flags { mem_none, mem_device, mem_threadgroup, mem_device_and_threadgroup };
void threadgroup_barrier(mem_flags);
void simdgroup_barrier(mem_flags);
#define MSL_VALUE(name) template <class T> T name(T);
#define MSL_VALUE_AND_LANE(name) template <class T> T name(T, ushort);
MSL_VALUE(simd_sum) MSL_VALUE(simd_product) MSL_VALUE(simd_max) MSL_VALUE(simd_min) MSL_VALUE(simd_and)
MSL_VALUE(simd_or) MSL_VALUE(simd_prefix_inclusive_sum) MSL_VALUE(simd_prefix_exclusive_sum)
MSL_VALUE_AND_LANE(simd_shuffle) MSL_VALUE_AND_LANE(simd_broadcast) MSL_VALUE_AND_LANE(simd_shuffle_down)
MSL_VALUE_AND_LANE(simd_shuffle_up) MSL_VALUE_AND_LANE(simd_shuffle_xor)
bool simd_any(bool);
bool simd_all(bool);
#define MSL_FUNCTIONS \
  float exp(float); float exp2(float); float log(float); float sqrt(float); float tanh(float); float rsqrt(float); \
  float cos(float); float sin(float);
MSL_FUNCTIONS
namespace precise { MSL_FUNCTIONS }
float fma(float, float, float);
template <class T, int ROWS, int COLUMNS> struct simdgroup_matrix;
template <> struct simdgroup_matrix<float, 8, 8> {
  __private float2& thread_elements() __private;
};
template <class T, int R, int C>
void simdgroup_multiply_accumulate(
    __private simdgroup_matrix<T, R, C>&, const __private simdgroup_matrix<T, R, C>&,
    const __private simdgroup_matrix<T, R, C>&, const __private simdgroup_matrix<T, R, C>&);
template <class T> T max(T, T);
template <class T> T min(T, T);
}  // namespace metal
template <class To, class From> To as_type(From);
using namespace metal;
#define INFINITY (__builtin_inff())
