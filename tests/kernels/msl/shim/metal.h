// The functions of the Metal Shading Language that the project's kernels may use, for a CPU.
// What is not declared here is not in the allowed subset: a kernel that uses it does not compile in the tests.
#pragma once
#include <cmath>
#include <limits>
#include "engine.h"

// What runs inside SIMD operations is the engine's, not the kernel's: no race is looked for there.
#if defined(__SANITIZE_THREAD__)
#define MSL_ENGINE __attribute__((no_sanitize("thread")))
#else
#define MSL_ENGINE
#endif

namespace msl {
template <class T> MSL_ENGINE T unpack(uint64_t bits) {
  T value;
  __builtin_memcpy(&value, &bits, sizeof(T));
  return value;
}
template <class T> MSL_ENGINE uint64_t pack(T value) {
  static_assert(sizeof(T) <= 8, "SIMD operations take values of up to 8 bytes");
  uint64_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof(T));
  return bits;
}
constexpr uint64_t POISON = ~0ull;  // NaN, or -1: the value of a lane that does not take part

template <class T> MSL_ENGINE T together(T value, int source, Collective collective, int line) {
  Lane* me = current();
  me->value = pack(value);
  me->source = source;
  meet_simdgroup(collective, line, false);
  return unpack<T>(me->result);
}

// Butterfly order over lane numbers; lanes that have returned are left out.
template <class T, class F> MSL_ENGINE void reduce(Lane** active, int count, F combine) {
  T value[32];
  bool have[32] = {};
  for (int i = 0; i < count; ++i) {
    int lane = active[i]->at.thread_index_in_simdgroup;
    value[lane] = unpack<T>(active[i]->value);
    have[lane] = true;
  }
  for (int step = 1; step < 32; step <<= 1)
    for (int a = 0; a < 32; a += 2 * step) {
      int b = a + step;
      if (have[a] && have[b]) value[a] = combine(value[a], value[b]);
      else if (have[b]) { value[a] = value[b]; have[a] = true; }
    }
  for (int i = 0; i < count; ++i) active[i]->result = pack(value[0]);
}

template <class T, bool INCLUSIVE> MSL_ENGINE void prefix(Lane** active, int count) {
  T sum = T(0);
  for (int i = 0; i < count; ++i) {
    T value = unpack<T>(active[i]->value);
    active[i]->result = pack(INCLUSIVE ? T(sum + value) : sum);
    sum = T(sum + value);
  }
}

enum Shuffle { FROM, DOWN, UP, XOR };
template <Shuffle KIND> MSL_ENGINE void exchange(Lane** active, int count) {
  Lane* by_number[32] = {};
  for (int i = 0; i < count; ++i) by_number[active[i]->at.thread_index_in_simdgroup] = active[i];
  for (int i = 0; i < count; ++i) {
    Lane* lane = active[i];
    int me = lane->at.thread_index_in_simdgroup, n = lane->source;
    int from = KIND == FROM ? n : KIND == DOWN ? me + n : KIND == UP ? me - n : me ^ n;
    bool edge = from < 0 || from > 31;
    if (edge && (KIND == DOWN || KIND == UP)) lane->result = lane->value;  // edge lanes keep their value
    else lane->result = !edge && by_number[from] ? by_number[from]->value : POISON;
  }
}
inline void nothing(Lane**, int) {}
}  // namespace msl

namespace metal {
enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_device_and_threadgroup = 3 };
inline void threadgroup_barrier(mem_flags flags, int line = __builtin_LINE()) {
  msl::meet_threadgroup(line, flags != mem_flags::mem_none);
}
inline void simdgroup_barrier(mem_flags flags, int line = __builtin_LINE()) {
  msl::meet_simdgroup(&msl::nothing, line, flags != mem_flags::mem_none);
}

#define MSL_REDUCTION(name, expression)                                                           \
  template <class T> void name##_lanes(msl::Lane** active, int count) {                           \
    msl::reduce<T>(active, count, [](T a, T b) -> T { return expression; });                      \
  }                                                                                               \
  template <class T> T name(T value, int line = __builtin_LINE()) {                               \
    return msl::together<T>(value, 0, &name##_lanes<T>, line);                                    \
  }
MSL_REDUCTION(simd_sum, T(a + b))
MSL_REDUCTION(simd_product, T(a * b))
MSL_REDUCTION(simd_max, (b > a ? b : a))
MSL_REDUCTION(simd_min, (b < a ? b : a))
MSL_REDUCTION(simd_and, T(a & b))
MSL_REDUCTION(simd_or, T(a | b))
#undef MSL_REDUCTION
inline bool simd_all(bool value, int line = __builtin_LINE()) { return simd_and(int(value), line) != 0; }
inline bool simd_any(bool value, int line = __builtin_LINE()) { return simd_or(int(value), line) != 0; }

#define MSL_PREFIX(name, inclusive)                                         \
  template <class T> T name(T value, int line = __builtin_LINE()) {         \
    return msl::together<T>(value, 0, &msl::prefix<T, inclusive>, line);    \
  }
MSL_PREFIX(simd_prefix_inclusive_sum, true)
MSL_PREFIX(simd_prefix_exclusive_sum, false)
#undef MSL_PREFIX

#define MSL_SHUFFLE(name, kind)                                             \
  template <class T> T name(T value, ushort n, int line = __builtin_LINE()) { \
    return msl::together<T>(value, n, &msl::exchange<msl::kind>, line);     \
  }
MSL_SHUFFLE(simd_shuffle, FROM)
MSL_SHUFFLE(simd_broadcast, FROM)
MSL_SHUFFLE(simd_shuffle_down, DOWN)
MSL_SHUFFLE(simd_shuffle_up, UP)
MSL_SHUFFLE(simd_shuffle_xor, XOR)
#undef MSL_SHUFFLE

#define MSL_FUNCTIONS                                  \
  inline float exp(float x) { return ::expf(x); }      \
  inline float log(float x) { return ::logf(x); }      \
  inline float sqrt(float x) { return ::sqrtf(x); }    \
  inline float exp2(float x) { return ::exp2f(x); }    \
  inline float cos(float x) { return ::cosf(x); }      \
  inline float sin(float x) { return ::sinf(x); }      \
  inline float tanh(float x) { return ::tanhf(x); }    \
  inline float rsqrt(float x) { return 1.0f / ::sqrtf(x); }
MSL_FUNCTIONS
namespace precise { MSL_FUNCTIONS }
#undef MSL_FUNCTIONS
inline float fma(float a, float b, float c) { return ::fmaf(a, b, c); }

// 8x8 matrices of a SIMD-group. Which lane holds which elements is not written down by Apple; this is the map that
// MLX's own kernels (steel/gemm/mma.h) rely on.
template <class T, int ROWS, int COLUMNS> struct simdgroup_matrix {
  static_assert(ROWS == 8 && COLUMNS == 8, "Metal has 8x8 matrices only");
  vec<T, 2> elements;
  simdgroup_matrix() { __builtin_memset((void*)&elements, 0xFF, sizeof elements); }  // not initialised on a GPU
  vec<T, 2>& thread_elements() { return elements; }
};
template <class T> using Matrix8 = simdgroup_matrix<T, 8, 8>;
template <class T> struct MatrixJob {
  Matrix8<T> *sum;
  const Matrix8<T> *a, *b, *c;
};
template <class T> MSL_ENGINE void multiply_lanes(msl::Lane** active, int count) {
  float a[8][8], b[8][8], c[8][8];
  auto place = [](msl::Lane* lane, int& row, int& column) {
    uint n = lane->at.thread_index_in_simdgroup;
    row = ((n >> 4) << 2) + ((n >> 1) & 3);
    column = (((n >> 3) & 1) << 2) + ((n & 1) << 1);
  };
  for (int i = 0; i < 64; ++i) a[i / 8][i % 8] = b[i / 8][i % 8] = c[i / 8][i % 8] = NAN;  // of lanes that left
  for (int i = 0; i < count; ++i) {
    auto* job = msl::unpack<MatrixJob<T>*>(active[i]->value);
    int row, column;
    place(active[i], row, column);
    for (int e = 0; e < 2; ++e) {
      a[row][column + e] = float((&job->a->elements.x)[e]);
      b[row][column + e] = float((&job->b->elements.x)[e]);
      c[row][column + e] = float((&job->c->elements.x)[e]);
    }
  }
  for (int i = 0; i < count; ++i) {
    auto* job = msl::unpack<MatrixJob<T>*>(active[i]->value);
    int row, column;
    place(active[i], row, column);
    for (int e = 0; e < 2; ++e) {
      float sum = c[row][column + e];
      for (int k = 0; k < 8; ++k) sum += a[row][k] * b[k][column + e];
      (&job->sum->elements.x)[e] = T(sum);
    }
  }
}
template <class T>
MSL_ENGINE void simdgroup_multiply_accumulate(Matrix8<T>& sum, const Matrix8<T>& a, const Matrix8<T>& b,
                                              const Matrix8<T>& c, int line = __builtin_LINE()) {
  MatrixJob<T> job{&sum, &a, &b, &c};
  msl::together<MatrixJob<T>*>(&job, 0, &multiply_lanes<T>, line);
}

template <class T> T max(T a, T b) { return b > a ? b : a; }
template <class T> T min(T a, T b) { return b < a ? b : a; }
}  // namespace metal

template <class To, class From> To as_type(From from) {
  static_assert(sizeof(To) == sizeof(From), "as_type keeps the size");
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}
using namespace metal;

// `threadgroup float name[8];` becomes MSL_THREADGROUP(float, name, [8]);
#define MSL_THREADGROUP(T, name, dims)     \
  typedef T name##_msl_type dims;          \
  static const char name##_msl_key = 0;    \
  name##_msl_type& name = *static_cast<name##_msl_type*>(msl::threadgroup_object(&name##_msl_key, sizeof(name##_msl_type)))

// Address spaces mean nothing to a CPU; the check with clang (opencl.h) gives them their meaning.
#define device
#define constant
#define thread
#define threadgroup
