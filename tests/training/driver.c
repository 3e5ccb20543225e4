/* A driver's library with one GPU, for nvidia-ml-py. Its state is in the file FAKE_DRIVER: clock reasons, ECC errors,
   failed rows and a new Xid error, each -1 where the GPU does not support it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, TIMEOUT = 10 };
typedef struct { void *device; unsigned long long type, data; unsigned instance, compute; } Event;
static long last = 0;

static long value(int number) {
    long values[4] = {0};
    FILE *file = fopen(getenv("FAKE_DRIVER"), "r");
    if (fscanf(file, "%ld %ld %ld %ld", values, values + 1, values + 2, values + 3) != 4) abort();
    fclose(file);
    return values[number];
}

int nvmlInitWithFlags(unsigned flags) { return SUCCESS; }

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    *device = &last;
    return strcmp(uuid, "GPU-1234") ? NOT_FOUND : SUCCESS;
}

int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *reasons) {
    *reasons = value(0);
    return value(0) < 0 ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetTotalEccErrors(void *device, int kind, int counter, unsigned long long *count) {
    *count = kind == 1 && counter == 0 ? value(1) : 99;
    return value(1) < 0 ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetRemappedRows(void *device, unsigned *one, unsigned *two, unsigned *pending, unsigned *failed) {
    *one = *two = *pending = 1;
    *failed = value(2);
    return value(2) < 0 ? NOT_SUPPORTED : SUCCESS;
}

int nvmlEventSetCreate(void **events) {
    *events = &last;
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(void *device, unsigned long long kinds, void *events) {
    return value(3) < 0 || kinds != 8 ? NOT_SUPPORTED : SUCCESS;
}

int nvmlEventSetWait_v2(void *events, Event *event, unsigned milliseconds) {
    if (milliseconds != 0) abort();
    if (value(3) <= 0 || value(3) == last) return TIMEOUT;
    event->type = 8;
    event->data = last = value(3);
    return SUCCESS;
}
