// Rejection sampling under top-k, in one dispatch: what the target allows, how much of the proposal it keeps, and the
// token it adds. Nothing of the size of the vocabulary is written.
//
//   values      [B, L, BLOCKS, K] float32   the K best logits of each block of ids, from top_candidates.metal
//   ids         [B, L, BLOCKS, K] int32     L = N + 1
//   proposal    [B, N] int32
//   candidates  [B, N, DRAFTED] int32       what each proposed token was drawn from, distinct
//   q           [B, N, DRAFTED] float32
//   start       [B] int32                   position of row 0; row n decides about position start + 1 + n
//   seeds       [4, 2] uint32               rng.base_keys: 2 accepts, 3 replaces
//   settings    [3] float32                 temperature, top_p, min_p
//   count       [B] int32                   proposed tokens that are kept
//   tokens      [B, L] int32                those, then the added token in all other places
//
// A row: p = softmax of the K best logits / temperature, cut by top_p, then by min_p. A token d is kept while
// u * q(d) < p(d); then comes the largest of log(p - q, at least 0) + noise, and log p + noise after the last row.
// Uniforms and noise are those of rng.py, made from the same counters: rounds of Threefry2x32 as in mx.random.
//
// Template: K, DRAFTED, both at most 32; BLOCKS; VOCAB, how many numbers rng.py would draw; ROWS, at least L; SIMDGROUPS.
// Grid: one threadgroup for each sequence, a SIMD-group for every row, (32 * SIMDGROUPS, B, 1).
// Called for sampled verify passes whose filters begin with top-k.
// Twin: log_probabilities in sampling.py, accept_sampled in acceptance.py.

constexpr uint NONE = 0xFFFFFFFFu;
constexpr uint EACH = (BLOCKS * K + 31) / 32;  // list entries of one lane
threadgroup uint list_ids[ROWS * K];
threadgroup float list_p[ROWS * K];
threadgroup float list_noise[ROWS * K];
threadgroup uint accepted[ROWS];

uint lane = thread_index_in_simdgroup;
uint part = simdgroup_index_in_threadgroup;
uint sequence = threadgroup_position_in_grid.y;
uint rows = uint(values_shape[1]);

for (uint n = part; n < rows; n += SIMDGROUPS) {
  uint row = sequence * rows + n;
  // Merge, as in select_walk.metal; lane k takes the k-th best.
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
  uint id = NONE;
  float scaled = -INFINITY;
  for (uint k = 0; k < K; ++k) {
    uint best = 0;
    uint best_id = NONE;
    for (uint j = 0; j < EACH; ++j) {
      if (keys[j] > best || (keys[j] == best && own[j] < best_id)) {
        best = keys[j];
        best_id = own[j];
      }
    }
    uint top = simd_max(best);
    uint chosen = simd_min(best == top ? best_id : NONE);
    for (uint j = 0; j < EACH; ++j) {
      keys[j] = own[j] == chosen ? 0 : keys[j];
      own[j] = own[j] == chosen ? NONE : own[j];
    }
    if (lane == k) {
      uint bits = (top >> 31) != 0 ? (top & 0x7FFFFFFFu) : ~top;
      scaled = as_type<float>(bits) / settings[0];
      id = chosen;
    }
  }

  // top-p, then min-p; the best one always stays.
  float highest = simd_max(scaled);
  float mass = precise::exp(scaled - highest);
  float share = mass / simd_sum(mass);
  float before = simd_prefix_inclusive_sum(share) - share;
  bool stays = lane < K && (settings[1] >= 1.0f || before < settings[1] || lane == 0);
  stays = stays && (settings[2] <= 0.0f || scaled >= highest + precise::log(settings[2]));
  float total = simd_sum(stays ? mass : 0.0f);
  float p = stays ? precise::exp(scaled - (highest + precise::log(total))) : 0.0f;

  // Word `number` of those that mx.random makes for this purpose and position: noise of this lane's id, then u.
  uint position = uint(start[sequence] + 1 + int(n));
  float drawn[2];
  for (uint draw = 0; draw < 2; ++draw) {
    uint words = draw == 0 ? uint(VOCAB) : 1u;
    uint number = draw == 0 ? min(id, uint(VOCAB) - 1) : 0u;
    uint first_half = words / 2;
    uint odd = words % 2;
    bool second = number >= first_half + odd;
    uint a = second ? number - first_half - odd : number;
    uint b = odd == 1 && number == first_half ? 0u : a + first_half + odd;
    uint purpose = draw == 0 ? 3 : 2;
    uint secret[3];
    secret[0] = seeds[purpose * 2];
    secret[1] = seeds[purpose * 2 + 1] ^ position;
    secret[2] = secret[0] ^ secret[1] ^ 0x1BD11BDAu;
    a += secret[0];
    b += secret[1];
    uint turns[8] = {13, 15, 26, 6, 17, 29, 16, 24};
    for (uint i = 0; i < 20; ++i) {
      uint turn = turns[i % 8];
      a += b;
      b = (b << turn) | (b >> (32 - turn));
      b ^= a;
      if (i % 4 == 3) {
        uint times = i / 4 + 1;
        a += secret[times % 3];
        b += secret[(times + 1) % 3] + times;
      }
    }
    drawn[draw] = min(float(second ? b : a) * 2.3283064365386963e-10f, 0.99999994f);
  }
  // Standard Gumbel noise; what remains of log(1 - u) near 0 is kept, as by log1p.
  float rest = 1.0f - drawn[0];
  float spent = rest == 1.0f ? drawn[0] : drawn[0] * (precise::log(rest) / (rest - 1.0f));
  float noise = -precise::log(max(spent, 1e-10f));

  if (lane < K) {
    list_ids[n * K + lane] = id;
    list_p[n * K + lane] = p;
    list_noise[n * K + lane] = noise;
  }
  if (n + 1 < rows) {
    uint place = sequence * (rows - 1) + n;
    uint token = uint(proposal[place]);
    float target = simd_sum(id == token ? p : 0.0f);
    bool mine = lane < DRAFTED && uint(candidates[place * DRAFTED + min(lane, uint(DRAFTED) - 1)]) == token;
    float drafter = simd_sum(mine ? q[place * DRAFTED + min(lane, uint(DRAFTED) - 1)] : 0.0f);
    if (lane == 0) {
      accepted[n] = drawn[1] * drafter < target ? 1 : 0;
    }
  }
}
threadgroup_barrier(mem_flags::mem_threadgroup);

if (part == 0) {
  uint kept = 0;
  while (kept + 1 < rows && accepted[kept] != 0) {
    ++kept;
  }
  uint at = min(lane, uint(K) - 1);
  uint id = list_ids[kept * K + at];
  float p = lane < K ? list_p[kept * K + at] : 0.0f;
  float q_here = 0.0f;
  if (kept + 1 < rows) {  // else nothing was rejected
    uint place = sequence * (rows - 1) + kept;
    for (uint j = 0; j < DRAFTED; ++j) {
      q_here += uint(candidates[place * DRAFTED + j]) == id ? q[place * DRAFTED + j] : 0.0f;
    }
  }
  float left = max(p - q_here, 0.0f);
  // Rounding can leave no mass at all; p itself is then the right law.
  left = simd_max(left) > 0.0f ? left : p;
  float score = left > 0.0f ? precise::log(left) + list_noise[kept * K + at] : -INFINITY;
  float most = simd_max(score);
  uint added = simd_min(lane < K && score == most ? id : NONE);
  if (lane == 0) {
    count[sequence] = int(kept);
  }
  for (uint n = lane; n < rows; n += 32) {
    tokens[sequence * rows + n] = n < kept ? proposal[sequence * (rows - 1) + n] : int(added);
  }
}
