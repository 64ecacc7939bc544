// Gated-delta layers of a verify pass: the rows of the previous pass that were kept are applied to the state they began
// with, the result is stored, and the new rows run from there in registers. The state is read once and written once;
// rows that were not kept never touched it, so there is nothing to take back.
//
//   state     [B, HV, DV, DK] float32     before the previous pass
//   old_k     [B, LO, HK, DK] T           what the previous pass read; HV is a multiple of HK
//   old_v     [B, LO, HV, DV] T
//   old_g     [B, LO, HV]                 decay
//   old_beta  [B, LO, HV]                 write strength
//   keep      [B] int32                   how many of those rows were kept, 0 ... LO
//   q, k      [B, L, HK, DK] T            of this pass, normed and scaled
//   v         [B, L, HV, DV] T
//   g, beta   [B, L, HV]
//   y         [B, L, HV, DV] T
//   stored    [B, HV, DV, DK] float32     after the kept rows, before this pass
//
// A row: state *= g; change = beta * (v - state k); state += change k^T; y = state q. Products are added by fma, so that no
// compiler may choose: a row has the same bits in this pass and as a kept row of the next one.
//
// Template: T; DK, a multiple of 32; LANES, which share one row of the state, a power of two.
// Grid: one SIMD-group for 32 / LANES rows of a head's state, (32, ceil(DV * LANES / 32), B * HV); 4 per group.
// Called for the target's verify passes.
// Twin: mlx_lm.models.gated_delta.gated_delta_update, once masked and once for the new rows.

constexpr uint EACH = DK / LANES;  // numbers of a lane, four neighbours at a time
uint lane = thread_index_in_simdgroup;
uint part = lane % LANES;
uint heads = uint(state_shape[1]);
uint values = uint(state_shape[2]);
uint value_row = thread_position_in_grid.y * (32 / LANES) + lane / LANES;
bool there = value_row < values;
uint row = there ? value_row : values - 1;  // lanes without a row go along with the last one
uint head = thread_position_in_grid.z;      // of all sequences
uint sequence = head / heads;
uint value_head = head % heads;
uint key_heads = uint(k_shape[2]);
uint key_head = value_head / (heads / key_heads);
uint at = (head * values + row) * DK + part * 4;

float memory[EACH];  // loops over it are unrolled, or it would not be registers
_Pragma("clang loop unroll(full)") for (uint i = 0; i < EACH; ++i) {
  memory[i] = state[at + i / 4 * (4 * LANES) + i % 4];
}

uint old_rows = uint(old_k_shape[1]);
uint kept = min(uint(max(keep[sequence], 0)), old_rows);
for (uint t = 0; t < kept; ++t) {
  uint place = sequence * old_rows + t;
  uint from = (place * key_heads + key_head) * DK + part * 4;
  float decay = float(old_g[place * heads + value_head]);
  float key[EACH];
  float held = 0.0f;
  _Pragma("clang loop unroll(full)") for (uint i = 0; i < EACH; ++i) {
    key[i] = float(old_k[from + i / 4 * (4 * LANES) + i % 4]);
    memory[i] *= decay;
    held = fma(memory[i], key[i], held);
  }
  for (uint far = 1; far < LANES; far *= 2) {
    held += simd_shuffle_xor(held, ushort(far));
  }
  float value = float(old_v[(place * heads + value_head) * values + row]);
  float change = (value - held) * float(old_beta[place * heads + value_head]);
  _Pragma("clang loop unroll(full)") for (uint i = 0; i < EACH; ++i) {
    memory[i] = fma(key[i], change, memory[i]);
  }
}
if (there) {
  _Pragma("clang loop unroll(full)") for (uint i = 0; i < EACH; ++i) {
    stored[at + i / 4 * (4 * LANES) + i % 4] = memory[i];
  }
}

uint rows = uint(k_shape[1]);
for (uint t = 0; t < rows; ++t) {
  uint place = sequence * rows + t;
  uint from = (place * key_heads + key_head) * DK + part * 4;
  float decay = float(g[place * heads + value_head]);
  float key[EACH];
  float held = 0.0f;
  _Pragma("clang loop unroll(full)") for (uint i = 0; i < EACH; ++i) {
    key[i] = float(k[from + i / 4 * (4 * LANES) + i % 4]);
    memory[i] *= decay;
    held = fma(memory[i], key[i], held);
  }
  for (uint far = 1; far < LANES; far *= 2) {
    held += simd_shuffle_xor(held, ushort(far));
  }
  uint to = (place * heads + value_head) * values + row;
  float change = (float(v[to]) - held) * float(beta[place * heads + value_head]);
  float read = 0.0f;
  _Pragma("clang loop unroll(full)") for (uint i = 0; i < EACH; ++i) {
    memory[i] = fma(key[i], change, memory[i]);
    read = fma(memory[i], float(q[from + i / 4 * (4 * LANES) + i % 4]), read);
  }
  for (uint far = 1; far < LANES; far *= 2) {
    read += simd_shuffle_xor(read, ushort(far));
  }
  if (there && part == 0) {
    y[to] = T(read);
  }
}
