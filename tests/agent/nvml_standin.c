/* A stand-in for libnvidia-ml.so.1 with two GPUs at buses 07 and 0f, and six more at 20 to 25, as nvml.h declares it. NVML_STATE is a directory with what is to happen:
   a file xid with its number is taken once; with lost the first GPU is lost, with hang a read never returns; ecc has a
   number of errors, and held the reasons of the second GPU. NVML_PAUSE: milliseconds between two looks at xid. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { unsigned gpu, memory; } use_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned id, scope; long long timestamp, latency; int kind, code; unsigned long long value; } field_t;
typedef struct { void *device; unsigned long long kind, data; unsigned gpu, compute; } event_t;

static int devices[8];

static long number(const char *name) {
    char path[4096];
    long value = -1;
    snprintf(path, sizeof path, "%s/%s", getenv("NVML_STATE"), name);
    FILE *file = fopen(path, "r");
    if (file) { if (fscanf(file, "%ld", &value) != 1) value = 0; fclose(file); }
    return value;
}
static int state(void *device) { return device == &devices[0] && number("lost") >= 0 ? 15 : 0; }

int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *address, void **device) {
    if (!strcmp(address, "0000:07:00.0")) *device = &devices[0];
    else if (!strcmp(address, "0000:0f:00.0")) *device = &devices[1];
    else if (!strncmp(address, "0000:2", 6) && address[6] >= '0' && address[6] < '6') *device = &devices[2 + address[6] - '0'];
    else return 6;
    return 0;
}
int nvmlDeviceGetUtilizationRates(void *device, use_t *use) {
    while (number("hang") >= 0) sleep(1);
    use->gpu = device == &devices[0] ? 90 : 40;
    return state(device);
}
int nvmlDeviceGetMemoryInfo(void *device, memory_t *memory) { memory->total = 80; memory->free = 50; memory->used = 30; return state(device); }
int nvmlDeviceGetClockInfo(void *device, int kind, unsigned *clock) { *clock = device == &devices[0] ? 1980 : 1200; return kind == 1 ? state(device) : 2; }
int nvmlDeviceGetMaxClockInfo(void *device, int kind, unsigned *clock) { *clock = 1980; return state(device); }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *held) {
    *held = device == &devices[1] && number("held") > 0 ? number("held") : 0;
    return state(device);
}
int nvmlDeviceGetTotalEccErrors(void *device, int kind, int counter, unsigned long long *count) {
    *count = 5 + (device == &devices[1] && number("ecc") > 0 ? number("ecc") : 0);
    return kind == 1 && counter == 0 ? state(device) : 2;
}
int nvmlDeviceGetCurrPcieLinkWidth(void *device, unsigned *width) { *width = 16; return 0; }
/* nvmlDeviceGetPcieReplayCounter is left out, as in an old library */
int nvmlDeviceGetFieldValues(void *device, int count, field_t *fields) {
    for (int i = 0; i < count; i++) {
        fields[i].code = fields[i].id == 38 ? 3 : 0;
        fields[i].kind = 1;
        fields[i].value = 0xABCD00000000ULL + (number("nvlink") > 0 ? number("nvlink") : 0);
    }
    return 0;
}
int nvmlEventSetCreate(void **set) { *set = devices; return 0; }
int nvmlDeviceRegisterEvents(void *device, unsigned long long kinds, void *set) { return kinds == 8 && set == devices ? 0 : 2; }
int nvmlEventSetWait_v2(void *set, event_t *event, unsigned timeout) {
    char path[4096];
    const char *set_pause = getenv("NVML_PAUSE");
    unsigned pause = set_pause ? atoi(set_pause) : 10;
    for (unsigned waited = 0; ; waited += pause) {
        long xid = number("xid");
        if (xid > 0) {
            snprintf(path, sizeof path, "%s/xid", getenv("NVML_STATE"));
            unlink(path);
            event->device = &devices[1]; event->kind = 8; event->data = xid;
            return 0;
        }
        if (waited >= timeout) return 10;
        usleep(pause * 1000);
    }
}
