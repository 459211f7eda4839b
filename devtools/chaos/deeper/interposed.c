/* Stands between a program and the C library, for chaos: its wall clock is off by what a file says, and its database files
   fail as a dying disk does. The file is 16 bytes, mapped: seconds by which CLOCK_REALTIME is off (double), and which of
   the calls below fail with EIO (a 64-bit set of bits). No clock of the machine and no disk is touched. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

enum { FAIL_SYNC = 1, FAIL_WRITE = 2, FAIL_READ = 4 };

struct orders {
    double clock_off_s;
    uint64_t failing;
};

static const struct orders none;
static volatile const struct orders *orders = &none;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CHAOS_ORDERS");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *mapped = mmap(NULL, sizeof(struct orders), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED)
        orders = mapped;
}

static int is_of_database(int file) {
    char link[64], path[4096];
    char digits[16];
    int at = 0, number = file;
    if (file < 0)
        return 0;
    do {
        digits[at++] = (char)('0' + number % 10);
    } while (number /= 10);
    strcpy(link, "/proc/self/fd/");
    size_t end = strlen(link);
    while (at)
        link[end++] = digits[--at];
    link[end] = 0;
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return strstr(path, "/fleet.db") != NULL;
}

static int fails(uint64_t which, int file) {
    if (!(orders->failing & which) || !is_of_database(file))
        return 0;
    errno = EIO;
    return 1;
}

#define FIND_REAL(name)              \
    static __typeof__(&name) real;   \
    if (!real)                       \
        real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

int fsync(int file) {
    FIND_REAL(fsync);
    return fails(FAIL_SYNC, file) ? -1 : real(file);
}

int fdatasync(int file) {
    FIND_REAL(fdatasync);
    return fails(FAIL_SYNC, file) ? -1 : real(file);
}

ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) {
    FIND_REAL(pwrite64);
    return fails(FAIL_WRITE, file) ? -1 : real(file, data, size, at);
}

ssize_t pwrite(int file, const void *data, size_t size, off_t at) {
    FIND_REAL(pwrite);
    return fails(FAIL_WRITE, file) ? -1 : real(file, data, size, at);
}

ssize_t pread64(int file, void *data, size_t size, off64_t at) {
    FIND_REAL(pread64);
    return fails(FAIL_READ, file) ? -1 : real(file, data, size, at);
}

ssize_t pread(int file, void *data, size_t size, off_t at) {
    FIND_REAL(pread);
    return fails(FAIL_READ, file) ? -1 : real(file, data, size, at);
}

static void shift(struct timespec *told) {
    double whole = floor(orders->clock_off_s);
    told->tv_sec += (time_t)whole;
    told->tv_nsec += (long)((orders->clock_off_s - whole) * 1e9);
    if (told->tv_nsec >= 1000000000L) {
        told->tv_nsec -= 1000000000L;
        told->tv_sec += 1;
    }
}

int clock_gettime(clockid_t clock, struct timespec *told) {
    FIND_REAL(clock_gettime);
    int result = real(clock, told);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        shift(told);
    return result;
}

int gettimeofday(struct timeval *told, void *zone) {
    static int (*real)(struct timeval *, void *);
    if (!real)
        real = (int (*)(struct timeval *, void *))dlsym(RTLD_NEXT, "gettimeofday");
    int result = real(told, zone);
    struct timespec precise = {told->tv_sec, told->tv_usec * 1000L};
    shift(&precise);
    told->tv_sec = precise.tv_sec;
    told->tv_usec = precise.tv_nsec / 1000;
    return result;
}

time_t time(time_t *told) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (told)
        *told = now.tv_sec;
    return now.tv_sec;
}
