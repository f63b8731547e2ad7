"""The native code of thread pools, as LLVM IR.

`graphc_parallel_for(pool, fn, args, extent, grain)` calls `fn(args, begin, end)` on disjoint ranges
that cover [0, extent), each of `grain` indices (the last may be shorter), from the calling thread
and from the workers, and returns when all are done.
A null pool, a pool of one thread, or one range: `fn(args, 0, extent)` is called directly. Nothing
is allocated per call.

How it works. `state` packs an epoch (upper 32 bits), an OPEN bit (16) and the number of workers
inside the job (lower 16). The caller writes the job, then publishes it by a new epoch with OPEN
set. A worker that sees an open epoch it has not served yet joins by a compare-and-swap that counts
it in, takes ranges off the atomic counter `next`, and counts itself out. The caller takes ranges
too; when none is left it clears OPEN and waits until the count is zero. So:

* the job's fields change only while the job is closed and no worker is inside;
* the caller never waits for a worker that did not join in time: a sleeping or descheduled worker
  costs nothing but its help, and a pool whose threads are gone (after fork) still works, serially;
* an idle worker spins for `spin_ns`, then sleeps on a condition variable; `sleepers` is raised
  before the last look at `state`, and the caller reads it after publishing, both sequentially
  consistent, so no wake-up is lost;
* `busy` is taken by an exchange; a second caller of the same pool (another thread, or `fn` itself)
  finds it taken and runs its whole range alone: any number of threads may share one pool.

Code that forks must call `graphc_pool_forked` in the child, which has no workers (for Python,
pool.py does). Destroying a pool waits for the job in progress.
"""

from __future__ import annotations

from graphc.backends.llvm_cpu.target import CpuTarget

SYMBOLS = (
    "graphc_parallel_for", "graphc_pool_create", "graphc_pool_destroy", "graphc_pool_forked",
    "graphc_pool_threads",
)  # fmt: skip
STACK = 4 << 20  # bytes of a worker's


def pool_ir(target: CpuTarget) -> str:
    """The pool's module for a target. Needs pthread, libc's allocator and clock_gettime."""
    declaration, pause = _PAUSE.get(target.arch, ("", ""))
    monotonic = 6 if "darwin" in target.triple or "apple" in target.triple else 1
    word = "i32" if target.arch.startswith("armv7") else "i64"
    text = _POOL_IR.replace("@PAUSE@", pause).replace("@MONOTONIC@", str(monotonic))
    text = text.replace("@STACK@", str(STACK))
    for what, spelled in _WORDS[word].items():
        text = text.replace(what, spelled)
    return f"{text}\n{declaration}\n"


SERIAL_IR = """
define void @graphc_parallel_for(ptr %pool, ptr %fn, ptr %args, i64 %extent, i64 %grain) {
  call void %fn(ptr %args, i64 0, i64 %extent)
  ret void
}
"""
"""In place of pools where there are no threads."""
_WORDS = {  # what a machine of 64 bits, or of 32, has for C's size_t and time_t
    "i64": {"@WORD@": "i64", "@SIZE@": "%size = add i64 %bytes, 0",
            "@WIDE@": "%wide = add i64 %x, 0"},
    "i32": {"@WORD@": "i32", "@SIZE@": "%size = trunc i64 %bytes to i32",
            "@WIDE@": "%wide = sext i32 %x to i64"},
}  # fmt: skip
_PAUSE = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
    "arm64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
}

# Pool: three cache lines (128 bytes each, for pairs fetched together), then what only sleepers use,
# then the thread handles.
#   line 0, constant during a job: 0 threads, 1 spin_ns, 2 fn, 3 args, 4 extent, 5 grain
#   line 1: 7 next      line 2: 9 state, 10 sleepers, 11 stop, 12 busy
#   then: 14 mutex, 15 condition, 16 workers started
_POOL_IR = """
%Pool = type { i64, i64, ptr, ptr, i64, i64, [80 x i8], i64, [120 x i8],
               i64, i64, i64, i64, [96 x i8], [128 x i8], [128 x i8], i64 }
%Time = type { @WORD@, @WORD@ }

declare i32 @pthread_attr_init(ptr)
declare i32 @pthread_attr_setstacksize(ptr, @WORD@)
declare i32 @pthread_attr_destroy(ptr)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(ptr, ptr)
declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_mutex_destroy(ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_signal(ptr)
declare i32 @pthread_cond_broadcast(ptr)
declare i32 @pthread_cond_destroy(ptr)
declare i32 @sched_yield()
declare i32 @clock_gettime(i32, ptr)
declare i32 @posix_memalign(ptr, @WORD@, @WORD@)
declare void @free(ptr)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare i64 @llvm.umin.i64(i64, i64)

define void @graphc_parallel_for(ptr %pool, ptr %fn, ptr %args, i64 %extent, i64 %grain) #0 {
entry:
  %single = icmp sle i64 %extent, %grain
  %null = icmp eq ptr %pool, null
  %trivial = or i1 %single, %null
  br i1 %trivial, label %serial, label %check
check:
  %threads = load i64, ptr %pool, align 8
  %one = icmp sle i64 %threads, 1
  br i1 %one, label %serial, label %claim
claim:
  %busy.p = getelementptr %Pool, ptr %pool, i32 0, i32 12
  %taken = atomicrmw xchg ptr %busy.p, i64 1 acquire
  %free = icmp eq i64 %taken, 0
  br i1 %free, label %publish, label %serial
serial:
  call void %fn(ptr %args, i64 0, i64 %extent)
  ret void

publish:
  %fn.p = getelementptr %Pool, ptr %pool, i32 0, i32 2
  %args.p = getelementptr %Pool, ptr %pool, i32 0, i32 3
  %extent.p = getelementptr %Pool, ptr %pool, i32 0, i32 4
  %grain.p = getelementptr %Pool, ptr %pool, i32 0, i32 5
  %next.p = getelementptr %Pool, ptr %pool, i32 0, i32 7
  %state.p = getelementptr %Pool, ptr %pool, i32 0, i32 9
  store ptr %fn, ptr %fn.p, align 8
  store ptr %args, ptr %args.p, align 8
  store i64 %extent, ptr %extent.p, align 8
  store i64 %grain, ptr %grain.p, align 8
  store atomic i64 0, ptr %next.p monotonic, align 8
  ; closed and empty: adding 2^32 + OPEN starts the next epoch
  %old = atomicrmw add ptr %state.p, i64 4295032832 seq_cst
  %sleepers.p = getelementptr %Pool, ptr %pool, i32 0, i32 10
  %sleepers = load atomic i64, ptr %sleepers.p seq_cst, align 8
  %asleep = icmp ne i64 %sleepers, 0
  br i1 %asleep, label %wake, label %work
wake:
  %last = sub i64 %extent, 1
  %helpers = udiv i64 %last, %grain
  %wanted = call i64 @llvm.umin.i64(i64 %helpers, i64 %sleepers)
  call void @wake(ptr %pool, i64 %wanted)
  br label %work
work:
  call void @take_ranges(ptr %pool, ptr %fn, ptr %args, i64 %extent, i64 %grain)
  %closed = atomicrmw and ptr %state.p, i64 -65537 acq_rel
  br label %wait
wait:
  %spins = phi i64 [ 0, %work ], [ %spins.next, %wait.again ]
  %state = load atomic i64, ptr %state.p acquire, align 8
  %inside = and i64 %state, 65535
  %done = icmp eq i64 %inside, 0
  br i1 %done, label %finish, label %pause
pause:
  @PAUSE@
  %spins.next = add i64 %spins, 1
  %long = and i64 %spins.next, 1023
  %yield = icmp eq i64 %long, 0
  br i1 %yield, label %give.way, label %wait.again
give.way:
  %ignored = call i32 @sched_yield()
  br label %wait.again
wait.again:
  br label %wait
finish:
  store atomic i64 0, ptr %busy.p release, align 8
  ret void
}

define internal void @take_ranges(ptr %pool, ptr %fn, ptr %args, i64 %extent, i64 %grain) #0 {
entry:
  %next.p = getelementptr %Pool, ptr %pool, i32 0, i32 7
  br label %take
take:
  %begin = atomicrmw add ptr %next.p, i64 %grain monotonic
  %some = icmp slt i64 %begin, %extent
  br i1 %some, label %run, label %done
run:
  %stop = add i64 %begin, %grain
  %end = call i64 @llvm.umin.i64(i64 %stop, i64 %extent)
  call void %fn(ptr %args, i64 %begin, i64 %end)
  br label %take
done:
  ret void
}

define internal void @wake(ptr %pool, i64 %wanted) #0 {
entry:
  %mutex = getelementptr %Pool, ptr %pool, i32 0, i32 14
  %condition = getelementptr %Pool, ptr %pool, i32 0, i32 15
  %locked = call i32 @pthread_mutex_lock(ptr %mutex)
  %unlocked = call i32 @pthread_mutex_unlock(ptr %mutex)
  br label %one
one:
  %n = phi i64 [ 0, %entry ], [ %n.next, %one ]
  %signalled = call i32 @pthread_cond_signal(ptr %condition)
  %n.next = add i64 %n, 1
  %more = icmp ult i64 %n.next, %wanted
  br i1 %more, label %one, label %done
done:
  ret void
}

define internal i64 @widened(@WORD@ %x) #1 {
  @WIDE@
  ret i64 %wide
}

define internal i64 @now() #0 {
  %t = alloca %Time, align 8
  %ignored = call i32 @clock_gettime(i32 @MONOTONIC@, ptr %t)
  %seconds.w = load @WORD@, ptr %t, align 4
  %part.p = getelementptr %Time, ptr %t, i32 0, i32 1
  %part.w = load @WORD@, ptr %part.p, align 4
  %seconds = call i64 @widened(@WORD@ %seconds.w)
  %part = call i64 @widened(@WORD@ %part.w)
  %whole = mul i64 %seconds, 1000000000
  %sum = add i64 %whole, %part
  ret i64 %sum
}

; A state that a worker which served epoch %served can join: OPEN, and of another epoch.
define internal i1 @joinable(i64 %state, i64 %served) #1 {
  %bit = and i64 %state, 65536
  %open = icmp ne i64 %bit, 0
  %epoch = lshr i64 %state, 32
  %new = icmp ne i64 %epoch, %served
  %both = and i1 %open, %new
  ret i1 %both
}

define internal ptr @worker(ptr %pool) #0 {
entry:
  %spin.p = getelementptr %Pool, ptr %pool, i32 0, i32 1
  %spin.ns = load i64, ptr %spin.p, align 8
  %state.p = getelementptr %Pool, ptr %pool, i32 0, i32 9
  %sleepers.p = getelementptr %Pool, ptr %pool, i32 0, i32 10
  %stop.p = getelementptr %Pool, ptr %pool, i32 0, i32 11
  %mutex = getelementptr %Pool, ptr %pool, i32 0, i32 14
  %condition = getelementptr %Pool, ptr %pool, i32 0, i32 15
  %fn.p = getelementptr %Pool, ptr %pool, i32 0, i32 2
  %args.p = getelementptr %Pool, ptr %pool, i32 0, i32 3
  %extent.p = getelementptr %Pool, ptr %pool, i32 0, i32 4
  %grain.p = getelementptr %Pool, ptr %pool, i32 0, i32 5
  br label %idle

idle:
  %served = phi i64 [ 0, %entry ], [ %epoch, %work ]
  %start = call i64 @now()
  %deadline = add i64 %start, %spin.ns
  br label %spin
spin:
  %n = phi i64 [ 0, %idle ], [ %n.next, %no.job ], [ 0, %awake ], [ %n, %join ]
  %state = load atomic i64, ptr %state.p acquire, align 8
  %wanted = call i1 @joinable(i64 %state, i64 %served)
  br i1 %wanted, label %join, label %no.job.yet
join:
  %counted = add i64 %state, 1
  %swap = cmpxchg ptr %state.p, i64 %state, i64 %counted acq_rel monotonic
  %joined = extractvalue { i64, i1 } %swap, 1
  br i1 %joined, label %work, label %spin
work:
  %epoch = lshr i64 %state, 32
  %fn = load ptr, ptr %fn.p, align 8
  %args = load ptr, ptr %args.p, align 8
  %extent = load i64, ptr %extent.p, align 8
  %grain = load i64, ptr %grain.p, align 8
  call void @take_ranges(ptr %pool, ptr %fn, ptr %args, i64 %extent, i64 %grain)
  %left = atomicrmw sub ptr %state.p, i64 1 release
  br label %idle
no.job.yet:
  %n.next = add i64 %n, 1
  %low = and i64 %n.next, 31
  %look = icmp eq i64 %low, 0
  br i1 %look, label %look.at.clock, label %spin.on
spin.on:
  @PAUSE@
  br label %no.job
no.job:
  br label %spin
look.at.clock:
  %time = call i64 @now()
  %early = icmp slt i64 %time, %deadline
  br i1 %early, label %spin.on, label %sleep

sleep:
  %locked = call i32 @pthread_mutex_lock(ptr %mutex)
  %raised = atomicrmw add ptr %sleepers.p, i64 1 seq_cst
  br label %still
still:
  %stop = load atomic i64, ptr %stop.p seq_cst, align 8
  %stopping = icmp ne i64 %stop, 0
  br i1 %stopping, label %quit, label %look.again
look.again:
  %seen = load atomic i64, ptr %state.p seq_cst, align 8
  %called = call i1 @joinable(i64 %seen, i64 %served)
  br i1 %called, label %awake, label %doze
doze:
  %woken = call i32 @pthread_cond_wait(ptr %condition, ptr %mutex)
  br label %still
awake:
  %lowered = atomicrmw sub ptr %sleepers.p, i64 1 seq_cst
  %unlocked = call i32 @pthread_mutex_unlock(ptr %mutex)
  br label %spin
quit:
  %lowered.too = atomicrmw sub ptr %sleepers.p, i64 1 seq_cst
  %unlocked.too = call i32 @pthread_mutex_unlock(ptr %mutex)
  ret ptr null
}

; The pool with `threads` - 1 workers, or as many as the system gives; null if memory is short.
define ptr @graphc_pool_create(i64 %threads, i64 %spin.ns) #0 {
entry:
  %cell = alloca ptr, align 8
  %attributes = alloca [128 x i8], align 16
  %fixed = ptrtoint ptr getelementptr (%Pool, ptr null, i32 1) to i64
  %handles = mul i64 %threads, 8
  %bytes = add i64 %fixed, %handles
  @SIZE@
  %failed = call i32 @posix_memalign(ptr %cell, @WORD@ 128, @WORD@ %size)
  %ok = icmp eq i32 %failed, 0
  br i1 %ok, label %fill, label %none
none:
  ret ptr null
fill:
  %pool = load ptr, ptr %cell, align 8
  call void @llvm.memset.p0.i64(ptr %pool, i8 0, i64 %bytes, i1 false)
  store i64 1, ptr %pool, align 8
  %spin.p = getelementptr %Pool, ptr %pool, i32 0, i32 1
  store i64 %spin.ns, ptr %spin.p, align 8
  %mutex = getelementptr %Pool, ptr %pool, i32 0, i32 14
  %condition = getelementptr %Pool, ptr %pool, i32 0, i32 15
  %count.p = getelementptr %Pool, ptr %pool, i32 0, i32 16
  %first = getelementptr %Pool, ptr %pool, i32 1
  %made.mutex = call i32 @pthread_mutex_init(ptr %mutex, ptr null)
  %made.condition = call i32 @pthread_cond_init(ptr %condition, ptr null)
  ; Kernels keep blocks on the stack, of which threads have 128 KB by musl and 512 KB on macOS.
  %known = call i32 @pthread_attr_init(ptr %attributes)
  %room = call i32 @pthread_attr_setstacksize(ptr %attributes, @WORD@ @STACK@)
  br label %more
more:
  %n = phi i64 [ 1, %fill ], [ %n.next, %started ]
  %enough = icmp sge i64 %n, %threads
  br i1 %enough, label %done, label %start
start:
  %index = sub i64 %n, 1
  %handle = getelementptr ptr, ptr %first, i64 %index
  %refused = call i32 @pthread_create(ptr %handle, ptr %attributes, ptr @worker, ptr %pool)
  %made = icmp eq i32 %refused, 0
  br i1 %made, label %started, label %done
started:
  store i64 %n, ptr %count.p, align 8
  %n.next = add i64 %n, 1
  br label %more
done:
  %forgotten = call i32 @pthread_attr_destroy(ptr %attributes)
  %workers = load i64, ptr %count.p, align 8
  %all = add i64 %workers, 1
  store i64 %all, ptr %pool, align 8
  ret ptr %pool
}

; Waits for the job in progress, if any, stops and joins the workers, and frees the pool.
define void @graphc_pool_destroy(ptr %pool) #0 {
entry:
  %busy.p = getelementptr %Pool, ptr %pool, i32 0, i32 12
  %null = icmp eq ptr %pool, null
  br i1 %null, label %out, label %claim
claim:
  %taken = atomicrmw xchg ptr %busy.p, i64 1 acquire
  %free = icmp eq i64 %taken, 0
  br i1 %free, label %stop, label %not.yet
not.yet:
  %yielded = call i32 @sched_yield()
  br label %claim
stop:
  %stop.p = getelementptr %Pool, ptr %pool, i32 0, i32 11
  %mutex = getelementptr %Pool, ptr %pool, i32 0, i32 14
  %condition = getelementptr %Pool, ptr %pool, i32 0, i32 15
  %count.p = getelementptr %Pool, ptr %pool, i32 0, i32 16
  %first = getelementptr %Pool, ptr %pool, i32 1
  %count = load i64, ptr %count.p, align 8
  %none = icmp eq i64 %count, 0
  br i1 %none, label %release, label %tell
tell:
  store atomic i64 1, ptr %stop.p seq_cst, align 8
  %locked = call i32 @pthread_mutex_lock(ptr %mutex)
  %told = call i32 @pthread_cond_broadcast(ptr %condition)
  %unlocked = call i32 @pthread_mutex_unlock(ptr %mutex)
  br label %join
join:
  %n = phi i64 [ 0, %tell ], [ %n.next, %join ]
  %handle.p = getelementptr ptr, ptr %first, i64 %n
  %handle = load ptr, ptr %handle.p, align 8
  %joined = call i32 @pthread_join(ptr %handle, ptr null)
  %n.next = add i64 %n, 1
  %more = icmp ult i64 %n.next, %count
  br i1 %more, label %join, label %ended
ended:
  %gone.condition = call i32 @pthread_cond_destroy(ptr %condition)
  %gone.mutex = call i32 @pthread_mutex_destroy(ptr %mutex)
  br label %release
release:
  call void @free(ptr %pool)
  br label %out
out:
  ret void
}

; In the child of a fork: forgets the workers, which do not exist there, and any job in progress.
define void @graphc_pool_forked(ptr %pool) #0 {
  %count.p = getelementptr %Pool, ptr %pool, i32 0, i32 16
  %busy.p = getelementptr %Pool, ptr %pool, i32 0, i32 12
  store i64 1, ptr %pool, align 8
  store i64 0, ptr %count.p, align 8
  store i64 0, ptr %busy.p, align 8
  ret void
}

define i64 @graphc_pool_threads(ptr %pool) #0 {
  %threads = load i64, ptr %pool, align 8
  ret i64 %threads
}

attributes #0 = { nounwind }
attributes #1 = { nounwind alwaysinline }
"""
