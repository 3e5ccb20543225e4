/* A library to preload: the n-th call below a folder, and all later ones if wanted, fails with an errno.

The plan and the count are in a file, mapped so that forks of the process share it. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct plan {
    long calls;
    char first[PATH_MAX + 32];
    char folder[PATH_MAX];
    long number;
    int error, lasting;
};
static struct plan *plan;

/* number 0 only counts; the report starts with the number of calls, and the one that failed first. */
void calls_plan(const char *folder, long number, int error, int lasting, const char *report) {
    int file = open(report, O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (ftruncate(file, sizeof *plan))
        abort();
    struct plan *made = mmap(NULL, sizeof *plan, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    snprintf(made->folder, PATH_MAX, "%s", folder);
    made->number = number, made->error = error, made->lasting = lasting;
    plan = made;
}

static int fails_at(const char *name, const char *path) {
    if (!plan || strncmp(path, plan->folder, strlen(plan->folder)))
        return 0;
    long call = __atomic_add_fetch(&plan->calls, 1, __ATOMIC_SEQ_CST);
    if (!plan->number || !(call == plan->number || (plan->lasting && call > plan->number)))
        return 0;
    if (call == plan->number)
        snprintf(plan->first, sizeof plan->first, "%s %s", name, path);
    errno = plan->error;
    return 1;
}

static int fails(const char *name, int folder, const char *path) {
    char whole[PATH_MAX], place[64];
    if (!plan)
        return 0;
    if (path && path[0] == '/')
        return fails_at(name, path);
    if (folder == AT_FDCWD) {
        if (!getcwd(whole, sizeof whole))
            return 0;
    } else {
        snprintf(place, sizeof place, "/proc/self/fd/%d", folder);
        ssize_t size = readlink(place, whole, sizeof whole - 1);
        if (size < 0)
            return 0;
        whole[size] = 0;
    }
    if (path) {
        strncat(whole, "/", sizeof whole - strlen(whole) - 1);
        strncat(whole, path, sizeof whole - strlen(whole) - 1);
    }
    return fails_at(name, whole);
}

#define REAL(name) ((__typeof__(name) *)dlsym(RTLD_NEXT, #name))
#define OF_PATH(result, name, folder, path, types, values) \
    result name types { return fails(#name, folder, path) ? (result)-1 : REAL(name) values; }
#define OF_FILE(result, name, types, values) \
    result name types { return fails(#name, file, NULL) ? (result)-1 : REAL(name) values; }

/* note: a file is opened for reading or writing with or without a mode */
#define OPENS(name) \
    int name(const char *path, int flags, ...) { \
        va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more); \
        return fails("open", AT_FDCWD, path) ? -1 : REAL(name)(path, flags, mode); \
    }
#define OPENS_AT(name) \
    int name(int folder, const char *path, int flags, ...) { \
        va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more); \
        return fails("open", folder, path) ? -1 : REAL(name)(folder, path, flags, mode); \
    }
OPENS(open)
OPENS(open64)
OPENS_AT(openat)
OPENS_AT(openat64)
DIR *opendir(const char *path) { return fails("opendir", AT_FDCWD, path) ? NULL : REAL(opendir)(path); }
OF_FILE(ssize_t, read, (int file, void *data, size_t size), (file, data, size))
OF_FILE(ssize_t, pread, (int file, void *data, size_t size, off_t at), (file, data, size, at))
OF_FILE(ssize_t, pread64, (int file, void *data, size_t size, off64_t at), (file, data, size, at))
OF_FILE(ssize_t, write, (int file, const void *data, size_t size), (file, data, size))
OF_FILE(ssize_t, pwrite, (int file, const void *data, size_t size, off_t at), (file, data, size, at))
OF_FILE(ssize_t, pwrite64, (int file, const void *data, size_t size, off64_t at), (file, data, size, at))
OF_FILE(int, fsync, (int file), (file))
OF_FILE(int, flock, (int file, int kind), (file, kind))
OF_FILE(int, ftruncate, (int file, off_t size), (file, size))
OF_FILE(int, ftruncate64, (int file, off64_t size), (file, size))
OF_PATH(int, rename, AT_FDCWD, from, (const char *from, const char *to), (from, to))
OF_PATH(int, renameat, folder, from, (int folder, const char *from, int other, const char *to), (folder, from, other, to))
OF_PATH(int, link, AT_FDCWD, to, (const char *from, const char *to), (from, to))
OF_PATH(int, linkat, other, to, (int folder, const char *from, int other, const char *to, int flags), (folder, from, other, to, flags))
OF_PATH(int, unlink, AT_FDCWD, path, (const char *path), (path))
OF_PATH(int, unlinkat, folder, path, (int folder, const char *path, int flags), (folder, path, flags))
OF_PATH(int, mkdir, AT_FDCWD, path, (const char *path, mode_t mode), (path, mode))
OF_PATH(int, mkdirat, folder, path, (int folder, const char *path, mode_t mode), (folder, path, mode))
