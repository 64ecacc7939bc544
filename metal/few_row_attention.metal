// Attention of a few rows over a buffer of keys and values: a tile of keys and values is read once for all rows and all
// query heads of its K/V head.
//
//   queries  [B, H, L, DIM] T
//   keys     [B, HKV, CAPACITY, DIM] T         H is a multiple of HKV; row i < SINK holds position i,
//   values   [B, HKV, CAPACITY, DIM] T         the others position base + i
//   start    [B] int32                         position of row 0
//   base     [1] int32
//   out      [PARTS, B, H, L, DIM] OUT         one part: the result; several: sums that few_row_merge.metal divides
//   bounds   [PARTS, B, H, L, 2] float32       largest score of the part, sum of its exponentials
//
// A row at position p sees a key at position s if s < start + L, and s <= p where CAUSAL, and |p - s| < WINDOW or
// s < SINK where there is a WINDOW. Every row sees at least one key. Scores are multiplied by 1 / sqrt(DIM).
//
// Template: T; OUT, float if there are several parts; DIM, at most 256; WINDOW, 0 for none; SINK; CAUSAL; SIMDGROUPS;
// PART, keys of a part, or 0 for what grows with the buffer, so that there are at most 32 parts.
// Grid: one threadgroup of SIMDGROUPS for 8 x SIMDGROUPS rows of a K/V head and a part of the buffer,
//   (32 * SIMDGROUPS, HKV * blocks of rows, B * PARTS).
// Called for the target's verify passes and the drafter's layers. Parts begin at fixed rows of the buffer, and every
// product is added by fma, so the numbers of a row do not depend on L. With PART (and no SINK) parts and tiles begin at
// multiples of the position: then they depend on nothing but what the row sees, neither on spare room nor on base.
// Twin: mx.fast.scaled_dot_product_attention with a mask.

constexpr uint TILE = 32;                            // keys: one of each lane
constexpr uint CHUNK = DIM > 32 ? 64 : 32;           // numbers of a key that are held at a time
constexpr uint CHUNKS = (DIM + CHUNK - 1) / CHUNK;
constexpr uint EACH = CHUNK / 32;
constexpr uint STRIDE = CHUNK + 4 / sizeof(T);       // of a key, so that lanes meet no common bank of memory
threadgroup T staged[TILE * STRIDE];
threadgroup float4 own[SIMDGROUPS * TILE * 2];       // of each SIMD-group, for 32 numbers or keys: its 8 rows

uint lane = thread_index_in_simdgroup;
uint group = simdgroup_index_in_threadgroup;
uint thread_number = thread_index_in_threadgroup;
uint length_in = uint(queries_shape[2]);
uint heads = uint(keys_shape[1]);
uint capacity = uint(keys_shape[2]);
uint rows = uint(queries_shape[1]) / heads * length_in;  // of a K/V head: its query heads, one after another
uint blocks = threadgroups_per_grid.y / heads;
uint head = threadgroup_position_in_grid.y / blocks;
uint part_rows = PART > 0 ? PART : 128;
while (PART == 0 && part_rows * 32 < capacity) {
  part_rows *= 2;
}
uint sequences = uint(queries_shape[0]);
uint parts = threadgroups_per_grid.z / sequences;
uint part = threadgroup_position_in_grid.z % parts;
uint sequence = threadgroup_position_in_grid.z / parts;
uint first_row = (threadgroup_position_in_grid.y % blocks * SIMDGROUPS + group) * 8;
uint buffer = (sequence * heads + head) * capacity;
uint query = (sequence * heads + head) * rows;

int first = start[sequence];
int origin = base[0];
int past = first + int(length_in);  // keys from here on are hidden
float scale = precise::rsqrt(float(DIM));

uint from[8];       // where the queries of the rows are; rows beyond the last one repeat it
int position[8];
float most[8];
float total[8];     // of this lane's keys
float sums[8 * CHUNKS * EACH];  // loops over it are unrolled, or it would not be registers
_Pragma("clang loop unroll(full)") for (uint r = 0; r < 8; ++r) {
  uint number = min(first_row + r, rows - 1);
  from[r] = (query + number) * DIM;
  position[r] = first + int(number % length_in);
  most[r] = -INFINITY;
  total[r] = 0.0f;
}
_Pragma("clang loop unroll(full)") for (uint i = 0; i < 8 * CHUNKS * EACH; ++i) {
  sums[i] = 0.0f;
}

int before = PART > 0 && WINDOW > 0 ? origin % PART : 0;  // keys of the first part that the buffer has dropped
int begin = int(part * part_rows) - before;
int end = min(begin + int(part_rows), int(capacity));
for (int tile = begin; tile < end; tile += int(TILE)) {
  bool behind = WINDOW > 0 && tile + int(TILE) + origin <= first - WINDOW + 1 && tile >= SINK;
  bool ahead = (tile < SINK ? tile : tile + origin) >= past;
  if (behind || ahead) {
    continue;
  }

  float score[8] = {0.0f};
  for (uint c = 0; c < CHUNKS; ++c) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = thread_number; i < TILE * CHUNK; i += 32 * SIMDGROUPS) {
      uint row = uint(tile) + i / CHUNK;  // before the buffer: more than any row
      uint d = c * CHUNK + i % CHUNK;
      staged[i / CHUNK * STRIDE + i % CHUNK] = row < capacity && d < DIM ? keys[(buffer + row) * DIM + d] : T(0.0f);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint e = 0; e < EACH; ++e) {
      uint d = c * CHUNK + e * 32 + lane;
      bool inside = d < DIM;
      float4 low;
      float4 high;
      low.x = inside ? float(queries[from[0] + d]) : 0.0f;
      low.y = inside ? float(queries[from[1] + d]) : 0.0f;
      low.z = inside ? float(queries[from[2] + d]) : 0.0f;
      low.w = inside ? float(queries[from[3] + d]) : 0.0f;
      high.x = inside ? float(queries[from[4] + d]) : 0.0f;
      high.y = inside ? float(queries[from[5] + d]) : 0.0f;
      high.z = inside ? float(queries[from[6] + d]) : 0.0f;
      high.w = inside ? float(queries[from[7] + d]) : 0.0f;
      simdgroup_barrier(mem_flags::mem_threadgroup);
      own[(group * TILE + lane) * 2] = low;
      own[(group * TILE + lane) * 2 + 1] = high;
      simdgroup_barrier(mem_flags::mem_threadgroup);
      for (uint i = 0; i < 32; ++i) {
        float key = float(staged[lane * STRIDE + e * 32 + i]);
        float4 a = own[(group * TILE + i) * 2];
        float4 b = own[(group * TILE + i) * 2 + 1];
        score[0] = fma(a.x, key, score[0]);
        score[1] = fma(a.y, key, score[1]);
        score[2] = fma(a.z, key, score[2]);
        score[3] = fma(a.w, key, score[3]);
        score[4] = fma(b.x, key, score[4]);
        score[5] = fma(b.y, key, score[5]);
        score[6] = fma(b.z, key, score[6]);
        score[7] = fma(b.w, key, score[7]);
      }
    }
  }

  int row = tile + int(lane);
  int at = row < SINK ? row : row + origin;
  bool there = row >= 0 && row < int(capacity) && at < past;
  float weight[8];
  _Pragma("clang loop unroll(full)") for (uint r = 0; r < 8; ++r) {
    int ahead_by = position[r] - at;
    bool near = WINDOW == 0 || (ahead_by < WINDOW && -ahead_by < WINDOW) || at < SINK;
    bool seen = there && near && (!CAUSAL || ahead_by >= 0);
    float scaled = seen ? score[r] * scale : -INFINITY;
    float top = max(most[r], simd_max(scaled));
    float shrink = most[r] == top ? 1.0f : precise::exp(most[r] - top);
    weight[r] = seen ? precise::exp(fma(score[r], scale, -top)) : 0.0f;
    most[r] = top;
    total[r] = fma(total[r], shrink, weight[r]);
    _Pragma("clang loop unroll(full)") for (uint i = 0; i < CHUNKS * EACH; ++i) {
      sums[i * 8 + r] *= shrink;
    }
  }
  float4 lower;
  float4 upper;
  lower.x = weight[0];
  lower.y = weight[1];
  lower.z = weight[2];
  lower.w = weight[3];
  upper.x = weight[4];
  upper.y = weight[5];
  upper.z = weight[6];
  upper.w = weight[7];
  simdgroup_barrier(mem_flags::mem_threadgroup);
  own[(group * TILE + lane) * 2] = lower;
  own[(group * TILE + lane) * 2 + 1] = upper;

  _Pragma("clang loop unroll(full)") for (uint c = 0; c < CHUNKS; ++c) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = thread_number; i < TILE * CHUNK; i += 32 * SIMDGROUPS) {
      uint row = uint(tile) + i / CHUNK;  // before the buffer: more than any row
      uint d = c * CHUNK + i % CHUNK;
      staged[i / CHUNK * STRIDE + i % CHUNK] = row < capacity && d < DIM ? values[(buffer + row) * DIM + d] : T(0.0f);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = 0; i < TILE; ++i) {
      float4 a = own[(group * TILE + i) * 2];
      float4 b = own[(group * TILE + i) * 2 + 1];
      _Pragma("clang loop unroll(full)") for (uint e = 0; e < EACH; ++e) {
        float value = float(staged[i * STRIDE + e * 32 + lane]);
        uint to = (c * EACH + e) * 8;
        sums[to] = fma(a.x, value, sums[to]);
        sums[to + 1] = fma(a.y, value, sums[to + 1]);
        sums[to + 2] = fma(a.z, value, sums[to + 2]);
        sums[to + 3] = fma(a.w, value, sums[to + 3]);
        sums[to + 4] = fma(b.x, value, sums[to + 4]);
        sums[to + 5] = fma(b.y, value, sums[to + 5]);
        sums[to + 6] = fma(b.z, value, sums[to + 6]);
        sums[to + 7] = fma(b.w, value, sums[to + 7]);
      }
    }
  }
}

_Pragma("clang loop unroll(full)") for (uint r = 0; r < 8; ++r) {
  float whole = simd_sum(total[r]);
  if (first_row + r < rows) {
    uint to = (part * sequences * heads * rows) + query + first_row + r;
    if (lane == 0) {
      bounds[to * 2] = most[r];
      bounds[to * 2 + 1] = whole;
    }
    _Pragma("clang loop unroll(full)") for (uint i = 0; i < CHUNKS * EACH; ++i) {
      uint d = i * 32 + lane;
      if (d < DIM) {
        out[to * DIM + d] = OUT(parts == 1 ? sums[i * 8 + r] / whole : sums[i * 8 + r]);
      }
    }
  }
}
