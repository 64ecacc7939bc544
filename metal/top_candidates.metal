// The K best logits of each block of 8 x 32 x EACH ids, best first; equal logits go to the lower id.
//
//   logits  [ROWS, V]                 any floating dtype; V is at least VOCAB
//   values  [ROWS, BLOCKS, K] float32 -INFINITY where a block has fewer than K ids
//   ids     [ROWS, BLOCKS, K] int32   -1 there
//
// Template: K, at most 32; VOCAB, ids at and beyond it are padding of the head; EACH, logits of one thread.
// Grid: one threadgroup of 256 threads (8 SIMD-groups) for each block and row, (256 * BLOCKS, ROWS, 1).
// Called on the drafter's logits. The lists of a row's blocks are merged by select_walk.metal.
// Twin: dflash2_mlx/kernels/top_candidates.py.

constexpr uint NONE = 0xFFFFFFFFu;
constexpr uint MERGE = (8 * K + 31) / 32;  // of the eight lists, entries of one lane
threadgroup uint list_keys[8 * K];
threadgroup uint list_ids[8 * K];

uint lane = thread_index_in_simdgroup;
uint part = simdgroup_index_in_threadgroup;
uint row = threadgroup_position_in_grid.y;
uint start = (threadgroup_position_in_grid.x * 8 + part) * 32 * EACH;
uint stride = logits_shape[1];

// A key is the logit as an unsigned number that grows with it, so -INFINITY has one too; 0 is "nothing".
uint keys[EACH];
for (uint j = 0; j < EACH; ++j) {
  uint id = start + j * 32 + lane;
  keys[j] = 0;
  if (id < VOCAB) {
    float logit = float(logits[row * stride + id]);
    uint bits = as_type<uint>(logit == 0.0f ? 0.0f : logit);  // -0.0 and 0.0 are equal
    keys[j] = (bits >> 31) != 0 ? ~bits : (bits | 0x80000000u);
  }
}

// Each SIMD-group takes the best of its lanes' bests, K times; only the lane that gave it looks again.
uint best = 0;
uint best_at = 0;
for (uint j = 0; j < EACH; ++j) {
  if (keys[j] > best) {
    best = keys[j];
    best_at = j;
  }
}
for (uint k = 0; k < K; ++k) {
  uint top = simd_max(best);
  uint number = simd_min(best == top && top != 0 ? best_at * 32 + lane : NONE);
  if (lane == 0) {
    list_keys[part * K + k] = top;
    list_ids[part * K + k] = number == NONE ? NONE : start + number;
  }
  if (number != NONE && number % 32 == lane) {
    uint gone = best_at;
    best = 0;
    best_at = 0;
    for (uint j = 0; j < EACH; ++j) {
      keys[j] = j == gone ? 0 : keys[j];
      if (keys[j] > best) {
        best = keys[j];
        best_at = j;
      }
    }
  }
}
threadgroup_barrier(mem_flags::mem_threadgroup);

// One SIMD-group merges the eight lists.
if (part == 0) {
  uint candidate_keys[MERGE];
  uint candidate_ids[MERGE];
  for (uint j = 0; j < MERGE; ++j) {
    uint i = j * 32 + lane;
    candidate_keys[j] = i < 8 * K ? list_keys[i] : 0;
    candidate_ids[j] = i < 8 * K ? list_ids[i] : NONE;
  }
  for (uint k = 0; k < K; ++k) {
    uint key = 0;
    uint id = NONE;
    for (uint j = 0; j < MERGE; ++j) {
      if (candidate_keys[j] > key || (candidate_keys[j] == key && candidate_ids[j] < id)) {
        key = candidate_keys[j];
        id = candidate_ids[j];
      }
    }
    uint top = simd_max(key);
    uint chosen = simd_min(key == top ? id : NONE);
    for (uint j = 0; j < MERGE; ++j) {
      candidate_keys[j] = candidate_ids[j] == chosen ? 0 : candidate_keys[j];
      candidate_ids[j] = candidate_ids[j] == chosen ? NONE : candidate_ids[j];
    }
    if (lane == 0) {
      uint to = (row * threadgroups_per_grid.x + threadgroup_position_in_grid.x) * K + k;
      uint bits = (top >> 31) != 0 ? (top & 0x7FFFFFFFu) : ~top;
      values[to] = top == 0 ? -INFINITY : as_type<float>(bits);
      ids[to] = top == 0 ? -1 : int(chosen);
    }
  }
}
