// From the lists of best logits to the proposal: merge them to K candidates for each position, then walk from the
// anchor and keep one candidate per position, each scored given the one before.
//
//   values       [B, N, BLOCKS, K] float32  from top_candidates.metal, or BLOCKS = 1 lists that are merged already
//   ids          [B, N, BLOCKS, K] int32
//   gate         [B, N, RANK]               hidden_projection of the positions' hidden rows
//   predecessor  [C, RANK]                  codebooks; every id is below C
//   successor    [C, RANK]
//   anchor       [B] int32                  may lie beyond the codebook, then its last row counts
//   settings     [3] float32                temperature, logit multiplier, soft cap (0: none)
//   noise        [B, N, K] float32          standard Gumbel for each candidate; read only if SAMPLED
//   tokens       [B, N] int32
//   candidates   [B, N, K] int32            logit descending, id ascending
//   unary        [B, N, K] float32          their logits, multiplied and capped
//   q            [B, N, K] float32          what each token was drawn from; greedy: 1 for the chosen one, else 0
//
// Template: K, at most 32; BLOCKS; RANK; SAMPLED; ROWS, at least N; SIMDGROUPS, at most K.
// Grid: one threadgroup of SIMDGROUPS x 32 threads for each sequence, (32 * SIMDGROUPS, B, 1).
// Called once for each draft pass. Twins: top_candidates.py, edge_scores and select_walk in select_walk.py.

constexpr uint NONE = 0xFFFFFFFFu;
constexpr uint EACH = (BLOCKS * K + 31) / 32;  // list entries of one lane
threadgroup uint candidate_ids[ROWS * K];
threadgroup float logits[ROWS * K];
threadgroup float scores[K];
threadgroup uint token;

uint lane = thread_index_in_simdgroup;
uint part = simdgroup_index_in_threadgroup;
uint sequence = threadgroup_position_in_grid.y;
uint positions = gate_shape[1];
float temperature = settings[0];
float multiplier = settings[1];
float cap = settings[2];

// Merge: one SIMD-group for each position. Keys as in top_candidates.metal.
for (uint n = part; n < positions; n += SIMDGROUPS) {
  uint row = sequence * positions + n;
  uint keys[EACH];
  uint own[EACH];
  for (uint j = 0; j < EACH; ++j) {
    uint i = j * 32 + lane;
    keys[j] = 0;
    own[j] = NONE;
    if (i < BLOCKS * K && ids[row * BLOCKS * K + i] >= 0) {
      float value = values[row * BLOCKS * K + i];
      uint bits = as_type<uint>(value == 0.0f ? 0.0f : value);
      keys[j] = (bits >> 31) != 0 ? ~bits : (bits | 0x80000000u);
      own[j] = uint(ids[row * BLOCKS * K + i]);
    }
  }
  for (uint k = 0; k < K; ++k) {
    uint key = 0;
    uint id = NONE;
    for (uint j = 0; j < EACH; ++j) {
      if (keys[j] > key || (keys[j] == key && own[j] < id)) {
        key = keys[j];
        id = own[j];
      }
    }
    uint top = simd_max(key);
    uint chosen = simd_min(key == top ? id : NONE);
    for (uint j = 0; j < EACH; ++j) {
      keys[j] = own[j] == chosen ? 0 : keys[j];
      own[j] = own[j] == chosen ? NONE : own[j];
    }
    if (lane == 0) {
      uint bits = (top >> 31) != 0 ? (top & 0x7FFFFFFFu) : ~top;
      float logit = as_type<float>(bits) * multiplier;
      logit = cap > 0.0f ? cap * precise::tanh(logit / cap) : logit;
      candidate_ids[n * K + k] = chosen;
      logits[n * K + k] = logit;
      candidates[row * K + k] = int(chosen);
      unary[row * K + k] = logit;
    }
  }
}
if (thread_index_in_threadgroup == 0) {
  token = min(uint(anchor[sequence]), uint(predecessor_shape[0]) - 1);
}
threadgroup_barrier(mem_flags::mem_threadgroup);

for (uint n = 0; n < positions; ++n) {
  uint row = sequence * positions + n;
  uint previous = token;
  for (uint k = part; k < K; k += SIMDGROUPS) {
    uint next = candidate_ids[n * K + k];
    float edge = 0.0f;
    for (uint r = lane; r < RANK; r += 32) {
      float gated = float(predecessor[previous * RANK + r]) * float(gate[row * RANK + r]);
      edge += gated * float(successor[next * RANK + r]);
    }
    edge = simd_sum(edge);
    if (lane == 0) {
      scores[k] = logits[n * K + k] + edge;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (part == 0) {
    float score = lane < K ? scores[lane] : -INFINITY;
    float wanted = score;
    if (SAMPLED) {
      score = score / temperature;
      wanted = lane < K ? score + noise[row * K + lane] : -INFINITY;
      float highest = simd_max(score);
      float mass = lane < K ? precise::exp(score - highest) : 0.0f;
      float total = simd_sum(mass);
      if (lane < K) {
        q[row * K + lane] = mass / total;
      }
    }
    // The first of equals. Were all of them NaN, nobody would be chosen: K - 1 keeps the index inside.
    float most = simd_max(wanted);
    uint chosen = min(simd_min(wanted == most ? lane : NONE), uint(K - 1));
    if (!SAMPLED && lane < K) {
      q[row * K + lane] = lane == chosen ? 1.0f : 0.0f;
    }
    if (lane == 0) {
      token = candidate_ids[n * K + chosen];
      tokens[row] = int(candidate_ids[n * K + chosen]);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}
