// Runs a kernel's threads on one CPU thread, one threadgroup after the other, each GPU thread as a fiber.
// Compiled without sanitizers itself: its own memory is not the kernel's, and only the kernel is under test.
#include "engine.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#ifdef MSL_ASAN
extern "C" void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom, size_t size);
extern "C" void __sanitizer_finish_switch_fiber(void* fake_stack, const void** bottom, size_t* size);
#endif
#ifdef MSL_TSAN
extern "C" void* __tsan_get_current_fiber();
extern "C" void* __tsan_create_fiber(unsigned flags);
extern "C" void __tsan_destroy_fiber(void* fiber);
extern "C" void __tsan_switch_to_fiber(void* fiber, unsigned flags);
extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);
extern "C" void AnnotateIgnoreReadsBegin(const char*, int);
extern "C" void AnnotateIgnoreReadsEnd(const char*, int);
extern "C" void AnnotateIgnoreWritesBegin(const char*, int);
extern "C" void AnnotateIgnoreWritesEnd(const char*, int);
// malloc, memset and SIMD operations would otherwise count as accesses of the kernel.
struct Quiet {
  Quiet() { AnnotateIgnoreReadsBegin("", 0); AnnotateIgnoreWritesBegin("", 0); }
  ~Quiet() { AnnotateIgnoreWritesEnd("", 0); AnnotateIgnoreReadsEnd("", 0); }
};
#else
struct Quiet { ~Quiet() {} };
#endif

namespace {
using msl::Lane;

constexpr size_t STACK = 1 << 18;
constexpr size_t THREADGROUP_LIMIT = 32768;
constexpr unsigned WIDTH = 32;  // lanes of a SIMD-group

enum State { READY, AT_SIMD, AT_BARRIER, RETURNED };

struct Fiber : Lane {
  void* stack_pointer = nullptr;
  char* stack = nullptr;
  State state = READY;
  int line = 0;  // of the kernel's text, where the lane waits
  msl::Collective collective = nullptr;
  void* fake_stack = nullptr;  // AddressSanitizer's
  void* tsan = nullptr;
};

struct Random {
  uint64_t state;
  uint32_t next() {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return uint32_t(state >> 11);
  }
  template <class T> void shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[next() % i]);
  }
};

struct Engine {
  std::vector<Fiber> fibers;
  std::vector<int> order;
  void** buffers;
  Random random;
  std::string error;
  std::map<const void*, void*> objects;  // threadgroup memory of the group that runs
  size_t object_bytes = 0;
  Fiber* running = nullptr;
  void* stack_pointer = nullptr;  // the scheduler's own
  void* fake_stack = nullptr;
  const void* bottom = nullptr;
  size_t size = 0;
  void* tsan = nullptr;
  char group_tag = 0, simd_tag[32] = {};  // addresses through which a barrier orders memory, for ThreadSanitizer

  void back_to_scheduler(bool last);
  void run(Fiber& fiber);
  void start(Fiber& fiber);
  bool release_simdgroup(int first);
  bool release_threadgroup();
  void run_lanes();
  void run_group(uint3 position, uint3 grid, uint3 threads, uint3 groups);
  std::string who_waits_where(int first, int count);
};
Engine* engine = nullptr;  // one kernel runs at a time in a process
}  // namespace

extern "C" void msl_switch(void** save_to, void* continue_at);
#if !defined(__x86_64__)
#error "msl_switch is written for x86-64"
#endif
// Saves what a callee must keep, and goes on where the other stack left off.
asm(R"(
.text
.globl msl_switch
.hidden msl_switch
.type msl_switch,@function
msl_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size msl_switch,.-msl_switch
)");

namespace {
void first_steps() {
#ifdef MSL_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &engine->bottom, &engine->size);
#endif
  msl_entry(engine->buffers, engine->running->at);
  engine->running->state = RETURNED;
  engine->back_to_scheduler(true);
  abort();  // nobody runs a lane that has returned
}

void Engine::back_to_scheduler([[maybe_unused]] bool last) {
  Fiber* me = running;
#ifdef MSL_ASAN
  __sanitizer_start_switch_fiber(last ? nullptr : &me->fake_stack, bottom, size);
#endif
#ifdef MSL_TSAN
  __tsan_switch_to_fiber(tsan, 1);  // 1: switching orders nothing
#endif
  msl_switch(&me->stack_pointer, stack_pointer);
#ifdef MSL_ASAN
  __sanitizer_finish_switch_fiber(me->fake_stack, &bottom, &size);
#endif
}

void Engine::run(Fiber& fiber) {
  running = &fiber;
#ifdef MSL_ASAN
  __sanitizer_start_switch_fiber(&fake_stack, fiber.stack, STACK);
#endif
#ifdef MSL_TSAN
  __tsan_switch_to_fiber(fiber.tsan, 1);
#endif
  msl_switch(&stack_pointer, fiber.stack_pointer);
#ifdef MSL_ASAN
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
}

void Engine::start(Fiber& fiber) {
#ifdef MSL_TSAN  // a stack used by two lanes would look like a race
  if (fiber.stack) munmap(fiber.stack, STACK);
  fiber.stack = nullptr;
  fiber.tsan = __tsan_create_fiber(0);
#endif
  if (!fiber.stack) {
    void* memory = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) { perror("no memory for a lane's stack"); abort(); }
    fiber.stack = static_cast<char*>(memory);
  }
  fiber.state = READY;
  fiber.fake_stack = nullptr;
  auto* top = reinterpret_cast<uint64_t*>(fiber.stack + STACK);
  *--top = 0;  // a return address that is never used; keeps the stack aligned as a call would
  *--top = reinterpret_cast<uint64_t>(&first_steps);
  for (int i = 0; i < 6; ++i) *--top = 0;
  fiber.stack_pointer = top;
}

std::string Engine::who_waits_where(int first, int count) {
  std::map<std::string, std::vector<int>> places;
  for (int i = first; i < first + count; ++i) {
    const Fiber& fiber = fibers[i];
    std::string line = ", line " + std::to_string(fiber.line);
    places[fiber.state == RETURNED     ? "returned"
           : fiber.state == AT_BARRIER ? "at threadgroup_barrier" + line
           : fiber.state == AT_SIMD    ? "at SIMD operation" + line
                                       : "ready"].push_back(i);
  }
  std::string text;
  for (auto& [place, lanes] : places)
    text += "\n    " + std::to_string(lanes.size()) + " thread(s) from " + std::to_string(lanes[0]) + ": " + place;
  return text;
}

bool Engine::release_simdgroup(int first) {
  int end = std::min<int>(first + WIDTH, fibers.size()), count = 0, live = 0;
  Lane* active[WIDTH];
  Fiber* one = nullptr;
  for (int i = first; i < end; ++i) {
    live += fibers[i].state != RETURNED;
    if (fibers[i].state == AT_SIMD) active[count++] = one = &fibers[i];
  }
  if (!count || count != live) return false;
  for (int i = 0; i < count; ++i) {
    auto* fiber = static_cast<Fiber*>(active[i]);
    if (fiber->collective != one->collective || fiber->line != one->line) {
      error = "threads of one SIMD-group are at different SIMD operations:" + who_waits_where(first, end - first);
      return false;
    }
  }
  one->collective(active, count);
  for (int i = 0; i < count; ++i) static_cast<Fiber*>(active[i])->state = READY;
  return true;
}

bool Engine::release_threadgroup() {
  for (auto& fiber : fibers)
    if (fiber.state != AT_BARRIER) return false;
  for (auto& fiber : fibers)
    if (fiber.line != fibers[0].line) {
      error = "threads of one threadgroup wait at different barriers:" + who_waits_where(0, fibers.size());
      return false;
    }
  for (auto& fiber : fibers) fiber.state = READY;
  return true;
}

void Engine::run_lanes() {
  order.resize(fibers.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  while (error.empty()) {
    random.shuffle(order);
    for (int i : order)
      if (fibers[i].state == READY && error.empty()) run(fibers[i]);
    if (!error.empty()) return;
    bool live = false, returned = false, progress = false;
    for (auto& fiber : fibers) (fiber.state == RETURNED ? returned : live) = true;
    if (!live) return;
    for (size_t first = 0; first < fibers.size() && error.empty(); first += WIDTH)
      progress |= release_simdgroup(first);
    progress |= error.empty() && release_threadgroup();
    if (!progress && error.empty())
      error = (returned ? "not reached by every thread of the threadgroup:" : "threads wait for each other:") +
              who_waits_where(0, fibers.size());
  }
}

void Engine::run_group(uint3 position, uint3 grid, uint3 threads, uint3 groups) {
  uint3 size;  // groups at the edge are smaller
  for (int d = 0; d < 3; ++d) size[d] = std::min(threads[d], grid[d] - position[d] * threads[d]);
  uint count = size.x * size.y * size.z, whole = threads.x * threads.y * threads.z;
  if (fibers.size() != count) {
    for (auto& fiber : fibers) munmap(fiber.stack, STACK);
    fibers.assign(count, Fiber());
  }
#ifndef MSL_TSAN  // a free would count as a write that races with the lanes
  for (auto& [declaration, memory] : objects) free(memory);
#else
  tsan = __tsan_get_current_fiber();
#endif
  objects.clear();
  object_bytes = 0;
  for (uint i = 0; i < count; ++i) {
    start(fibers[i]);
    uint3 own(i % size.x, i / size.x % size.y, i / (size.x * size.y));
    msl::Attributes& at = fibers[i].at;
    at.thread_position_in_threadgroup = own;
    at.threadgroup_position_in_grid = position;
    at.thread_position_in_grid = position * threads + own;
    at.threads_per_grid = at.grid_size = grid;
    at.grid_origin = uint3(0);
    at.threads_per_threadgroup = size;
    at.dispatch_threads_per_threadgroup = threads;
    at.threadgroups_per_grid = groups;
    at.thread_index_in_threadgroup = i;
    at.thread_index_in_simdgroup = i % WIDTH;
    at.simdgroup_index_in_threadgroup = i / WIDTH;
    at.simdgroups_per_threadgroup = (count + WIDTH - 1) / WIDTH;
    at.dispatch_simdgroups_per_threadgroup = (whole + WIDTH - 1) / WIDTH;
    at.thread_execution_width = at.threads_per_simdgroup = WIDTH;
    at.thread_index_in_quadgroup = i % 4;
    at.quadgroup_index_in_threadgroup = i / 4;
    at.quadgroups_per_threadgroup = (count + 3) / 4;
    at.dispatch_quadgroups_per_threadgroup = (whole + 3) / 4;
  }
  run_lanes();
#ifdef MSL_TSAN
  for (auto& fiber : fibers) __tsan_destroy_fiber(fiber.tsan);
#endif
  if (!error.empty()) {
    char where[64];
    snprintf(where, sizeof where, "threadgroup (%u, %u, %u): ", position.x, position.y, position.z);
    error = where + error;
  }
}
}  // namespace

namespace msl {
Lane* current() { return engine->running; }

void meet_simdgroup(Collective collective, int line, [[maybe_unused]] bool orders_memory) {
  Fiber* me = engine->running;
#ifdef MSL_TSAN
  char* tag = &engine->simd_tag[me->at.simdgroup_index_in_threadgroup];
  if (orders_memory) __tsan_release(tag);
#endif
  me->state = AT_SIMD;
  me->collective = collective;
  me->line = line;
  engine->back_to_scheduler(false);
#ifdef MSL_TSAN
  if (orders_memory) __tsan_acquire(tag);
#endif
}

void meet_threadgroup(int line, [[maybe_unused]] bool orders_memory) {
  Fiber* me = engine->running;
#ifdef MSL_TSAN
  if (orders_memory) __tsan_release(&engine->group_tag);
#endif
  me->state = AT_BARRIER;
  me->line = line;
  engine->back_to_scheduler(false);
#ifdef MSL_TSAN
  if (orders_memory) __tsan_acquire(&engine->group_tag);
#endif
}

void* threadgroup_object(const void* declaration, size_t bytes) {
  Quiet quiet;
  auto found = engine->objects.find(declaration);
  if (found != engine->objects.end()) return found->second;
  engine->object_bytes += (bytes + 15) / 16 * 16;
  if (engine->object_bytes > THREADGROUP_LIMIT) engine->error = "more than 32768 bytes of threadgroup memory";
  void* memory = malloc(bytes);  // of exact size: AddressSanitizer then sees one element too many
  memset(memory, 0xFF, bytes);
  engine->objects[declaration] = memory;
  return memory;
}
}  // namespace msl

namespace {
// Runs the whole grid; returns what went wrong, or nothing.
std::string run_grid(void** buffers, uint3 grid, uint3 threads, uint64_t seed) {
  uint3 groups;
  if (uint64_t(threads.x) * threads.y * threads.z > 1024) return "threadgroup larger than 1024 threads";
  for (int d = 0; d < 3; ++d) {
    if (!grid[d] || !threads[d]) return "empty grid or threadgroup";
    threads[d] = std::min(threads[d], grid[d]);  // as MLX does
    groups[d] = (grid[d] + threads[d] - 1) / threads[d];
  }
  Engine here{};
  engine = &here;
  here.buffers = buffers;
  here.random.state = 88172645463325252ull + seed * 7919;
  std::vector<uint32_t> numbers(size_t(groups.x) * groups.y * groups.z);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = i;
  here.random.shuffle(numbers);
  for (uint32_t n : numbers)
    if (here.error.empty())
      here.run_group(uint3(n % groups.x, n / groups.x % groups.y, n / (groups.x * groups.y)), grid, threads, groups);
  return here.error;
}

void read_or_die(void* to, size_t bytes, FILE* file) {
  if (bytes && fread(to, 1, bytes, file) != bytes) { fprintf(stderr, "short job file\n"); _exit(2); }
}

// Job file in, outputs out.
int run_job(const char* job, const char* results) {
  Quiet quiet;
  FILE* file = fopen(job, "rb");
  uint64_t head[9];  // grid (3), threadgroup (3), seed, number of buffers, number of outputs
  read_or_die(head, sizeof head, file);
  std::vector<uint64_t> sizes(head[7]);
  read_or_die(sizes.data(), 8 * sizes.size(), file);
  std::vector<void*> buffers;
  for (uint64_t bytes : sizes) {
    buffers.push_back(malloc(bytes));  // never freed: a free would count as a write that races with the lanes
    read_or_die(buffers.back(), bytes, file);
  }
  fclose(file);
  std::string error = run_grid(buffers.data(), uint3(head[0], head[1], head[2]), uint3(head[3], head[4], head[5]), head[6]);
  if (!error.empty()) {
    fprintf(stderr, "MSL: %s\n", error.c_str());
    return 3;
  }
  file = fopen(results, "wb");
  for (size_t i = sizes.size() - head[8]; i < sizes.size(); ++i) fwrite(buffers[i], 1, sizes[i], file);
  fclose(file);
  return 0;
}
}  // namespace

int main(int count, char** arguments) {
  int status = count == 3 ? run_job(arguments[1], arguments[2]) : 2;
  fflush(stderr);
  _exit(status);  // without clearing up, which ThreadSanitizer would take for accesses of the kernel
}
