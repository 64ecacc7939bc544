// Stands in for Apple's header: the one tensor operation that a kernel of ours uses, 16 x 32 x 16 by one SIMD-group.
// What it imitates is the use that MLX makes of it (steel/gemm/nax.h). So it shows that a kernel agrees with MLX's
// understanding of lanes and elements, and nothing of Apple's.
#pragma once

namespace metal {
struct execution_simdgroup {};
template <class T> using remove_addrspace_t = T;
}  // namespace metal

namespace mpp::tensor_ops {
struct matmul2d_descriptor {
  enum class mode { multiply, multiply_accumulate };
  int m, n, k;
  bool transpose_left, transpose_right, relaxed;
  mode kind;
  constexpr matmul2d_descriptor(int m, int n, int k, bool left, bool right, bool relaxed, mode kind)
      : m(m), n(n), k(k), transpose_left(left), transpose_right(right), relaxed(relaxed), kind(kind) {}
};

template <class T, int SIZE> struct cooperative_tensor {
  T elements[SIZE];
  cooperative_tensor() { __builtin_memset((void*)elements, 0xFF, sizeof elements); }  // not initialised on a GPU
  T& operator[](int i) { return elements[i]; }
};

template <class T> struct Job {
  cooperative_tensor<T, 8>* left;
  cooperative_tensor<T, 16>* right;
  cooperative_tensor<float, 16>* sums;
};

// Row and column of element e of a lane, in a matrix of 16 columns whose upper 16 rows are elements 0 to 7.
MSL_ENGINE inline void place(uint lane, int e, int& row, int& column) {
  uint quad = lane >> 2;
  row = int((quad & 4) | ((lane >> 1) & 3)) + ((e >> 2) & 1) * 8;
  column = int((quad & 2) | (lane & 1)) * 4 + (e & 3);
}

template <class T> MSL_ENGINE void multiply_lanes(msl::Lane** active, int count) {
  float left[16][16], right[32][16], sums[16][32];
  for (int i = 0; i < 512; ++i) left[i / 32][i % 16] = right[i / 16][i % 16] = sums[i / 32][i % 32] = NAN;
  for (int i = 0; i < count; ++i) {
    auto* job = msl::unpack<Job<T>*>(active[i]->value);
    for (int e = 0; e < 16; ++e) {
      int row, column;
      place(active[i]->at.thread_index_in_simdgroup, e, row, column);
      if (e < 8) left[row][column] = float(job->left->elements[e]);
      right[row + (e >> 3) * 16][column] = float(job->right->elements[e]);
      sums[row][column + (e >> 3) * 16] = job->sums->elements[e];
    }
  }
  for (int i = 0; i < count; ++i) {
    auto* job = msl::unpack<Job<T>*>(active[i]->value);
    for (int e = 0; e < 16; ++e) {
      int row, column;
      place(active[i]->at.thread_index_in_simdgroup, e, row, column);
      column += (e >> 3) * 16;
      float sum = sums[row][column];
      for (int k = 0; k < 16; ++k) sum += left[row][k] * right[column][k];
      job->sums->elements[e] = sum;
    }
  }
}

template <matmul2d_descriptor D, class Scope> struct matmul2d {
  static_assert(D.m == 16 && D.n == 32 && D.k == 16 && !D.transpose_left && D.transpose_right, "only this is imitated");
  static_assert(D.kind == matmul2d_descriptor::mode::multiply_accumulate, "only this is imitated");
  template <class A, class B, class C> cooperative_tensor<A, 8> get_left_input_cooperative_tensor() { return {}; }
  template <class A, class B, class C> cooperative_tensor<B, 16> get_right_input_cooperative_tensor() { return {}; }
  template <class A, class B, class C> cooperative_tensor<C, 16> get_destination_cooperative_tensor() { return {}; }
  template <class T>
  MSL_ENGINE void run(cooperative_tensor<T, 8>& left, cooperative_tensor<T, 16>& right,
                      cooperative_tensor<float, 16>& sums, int line = __builtin_LINE()) {
    Job<T> job{&left, &right, &sums};
    msl::together<Job<T>*>(&job, 0, &multiply_lanes<T>, line);
  }
};
}  // namespace mpp::tensor_ops
