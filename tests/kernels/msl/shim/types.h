// Metal's scalar and vector types for a CPU: half, bfloat, and vectors of 2, 3 and 4.
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>

typedef unsigned int uint;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef _Float16 half;
typedef half float16_t;

// Converts from float only when asked, which is stricter than Metal: a kernel must write T(...) at every store.
struct bfloat {
  uint16_t bits;
  bfloat() = default;
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T> || std::is_same_v<T, half>>>
  explicit bfloat(T value) {
    float wide = float(value);
    uint32_t u;
    memcpy(&u, &wide, 4);
    bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    bits = nan ? uint16_t((u >> 16) | 0x40) : uint16_t((u + 0x7fffu + ((u >> 16) & 1)) >> 16);  // nearest, ties to even
  }
  operator float() const {
    uint32_t u = uint32_t(bits) << 16;
    float wide;
    memcpy(&wide, &u, 4);
    return wide;
  }
};
typedef bfloat bfloat16_t;

// Arithmetic of two bfloats rounds after every operation.
#define MSL_BFLOAT(op) \
  inline bfloat operator op(bfloat a, bfloat b) { return bfloat(float(a) op float(b)); }
MSL_BFLOAT(+) MSL_BFLOAT(-) MSL_BFLOAT(*) MSL_BFLOAT(/)
#undef MSL_BFLOAT

namespace metal {
template <class T, int N> struct vec;
template <class T> struct alignas(2 * sizeof(T)) vec<T, 2> {
  T x, y;
  vec() = default;
  vec(T a) : x(a), y(a) {}
  vec(T a, T b) : x(a), y(b) {}
  T& operator[](int i) { return (&x)[i]; }
  const T& operator[](int i) const { return (&x)[i]; }
};
template <class T> struct alignas(4 * sizeof(T)) vec<T, 3> {
  T x, y, z;
  vec() = default;
  vec(T a) : x(a), y(a), z(a) {}
  vec(T a, T b, T c) : x(a), y(b), z(c) {}
  T& operator[](int i) { return (&x)[i]; }
  const T& operator[](int i) const { return (&x)[i]; }
};
template <class T> struct alignas(4 * sizeof(T)) vec<T, 4> {
  T x, y, z, w;
  vec() = default;
  vec(T a) : x(a), y(a), z(a), w(a) {}
  vec(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}
  T& operator[](int i) { return (&x)[i]; }
  const T& operator[](int i) const { return (&x)[i]; }
};
#define MSL_VECTOR(op)                                                       \
  template <class T, int N> vec<T, N> operator op(vec<T, N> a, vec<T, N> b) { \
    vec<T, N> r;                                                             \
    for (int i = 0; i < N; ++i) r[i] = T(a[i] op b[i]);                      \
    return r;                                                                \
  }
MSL_VECTOR(+) MSL_VECTOR(-) MSL_VECTOR(*) MSL_VECTOR(/)
#undef MSL_VECTOR
}  // namespace metal

#define MSL_VECTORS(T) \
  typedef metal::vec<T, 2> T##2; typedef metal::vec<T, 3> T##3; typedef metal::vec<T, 4> T##4;
MSL_VECTORS(float) MSL_VECTORS(half) MSL_VECTORS(bfloat) MSL_VECTORS(int) MSL_VECTORS(uint)
#undef MSL_VECTORS
