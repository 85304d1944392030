/* A machine whose clock goes wrong: processes that load this first see another time of day.

     gcc -shared -fPIC -O2 -o shifted_clock.so shifted_clock.c
     LD_PRELOAD=$PWD/shifted_clock.so CLOCK_SHIFT_S=3600 date

   Whoever waits until a time of day waits until that of this clock. The monotonic clock, and what
   is counted from it, stays as it is. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>

static time_t shift(void) {
  static time_t known;
  static int is_known;
  if (!is_known) {
    const char *told = getenv("CLOCK_SHIFT_S");
    known = told ? atol(told) : 0;
    is_known = 1;
  }
  return known;
}

/* A condition's own clock is not told; seconds since 1970 are more than those since a start. */
static struct timespec real_time(const struct timespec *until) {
  struct timespec found = *until;
  if (found.tv_sec > 1000000000) found.tv_sec -= shift();
  return found;
}

#define NEXT(name)                \
  static __typeof__(&name) next;  \
  if (!next) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name);

int clock_gettime(clockid_t clock, struct timespec *found) {
  NEXT(clock_gettime)
  int failed = next(clock, found);
  int is_shifted = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
  if (!failed && is_shifted) found->tv_sec += shift();
  return failed;
}

int gettimeofday(struct timeval *restrict found, void *restrict zone) {
  NEXT(gettimeofday)
  int failed = next(found, zone);
  if (!failed) found->tv_sec += shift();
  return failed;
}

time_t time(time_t *found) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (found) *found = now.tv_sec;
  return now.tv_sec;
}

int timespec_get(struct timespec *found, int base) {
  return base == TIME_UTC && !clock_gettime(CLOCK_REALTIME, found) ? base : 0;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left) {
  NEXT(clock_nanosleep)
  struct timespec real = clock == CLOCK_REALTIME && flags ? real_time(until) : *until;
  return next(clock, flags, &real, left);
}

int pthread_cond_timedwait(pthread_cond_t *restrict it, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
  static __typeof__(&pthread_cond_timedwait) next; /* not its oldest version, which dlsym finds */
  if (!next) next = (__typeof__(next))dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
  struct timespec real = real_time(until);
  return next(it, mutex, &real);
}

int pthread_cond_clockwait(pthread_cond_t *restrict it, pthread_mutex_t *restrict mutex,
                           clockid_t clock, const struct timespec *restrict until) {
  NEXT(pthread_cond_clockwait)
  struct timespec real = clock == CLOCK_REALTIME ? real_time(until) : *until;
  return next(it, mutex, clock, &real);
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict it, const struct timespec *restrict until) {
  NEXT(pthread_mutex_timedlock)
  struct timespec real = real_time(until);
  return next(it, &real);
}

int sem_timedwait(sem_t *restrict it, const struct timespec *restrict until) {
  NEXT(sem_timedwait)
  struct timespec real = real_time(until);
  return next(it, &real);
}

int sem_clockwait(sem_t *restrict it, clockid_t clock, const struct timespec *restrict until) {
  NEXT(sem_clockwait)
  struct timespec real = clock == CLOCK_REALTIME ? real_time(until) : *until;
  return next(it, clock, &real);
}

/* Libraries with locks of their own wait in the kernel. */
long syscall(long number, long a, long b, long c, long d, long e, long f) {
  static long (*next)(long, long, long, long, long, long, long);
  if (!next) next = (__typeof__(next))dlsym(RTLD_NEXT, "syscall");
  if (number == SYS_futex && (b & FUTEX_CLOCK_REALTIME) && d) {
    struct timespec real = real_time((const struct timespec *)d);
    return next(number, a, b, c, (long)&real, e, f);
  }
  return next(number, a, b, c, d, e, f);
}
