/* A driver of CUDA's whose GPU is host memory: enough for an engine to read to it. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long Address;
static struct { Address begin; size_t length; } allocated[1024];
static int allocations;
static __thread void *current;

static int find(Address at) {
  for (int i = 0; i < allocations; i++)
    if (at >= allocated[i].begin && at < allocated[i].begin + allocated[i].length) return i;
  return -1;
}

int cuDriverGetVersion(int *version) { *version = 12080; return 0; }
int cuGetErrorName(int code, const char **name) { *name = "CUDA_FAKE"; return 0; }
int cuGetErrorString(int code, const char **text) { *text = "fake"; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char *name, int length, int device) { snprintf(name, length, "fake"); return 0; }
int cuDeviceGetUuid(unsigned char *uuid, int device) { memset(uuid, 7, 16); return 0; }
int cuDeviceGetPCIBusId(char *id, int length, int device) { snprintf(id, length, "0000:99:00.0"); return 0; }
int cuDeviceTotalMem(size_t *bytes, int device) { *bytes = 1ull << 30; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { *value = 1; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)0x1000; return 0; }
int cuCtxGetId(void *context, uint64_t *id) { *id = 1; return 0; }
int cuCtxGetCurrent(void **context) { *context = current; return 0; }
int cuCtxPushCurrent(void *context) { current = context; return 0; }
int cuCtxPopCurrent(void **context) { if (context) *context = current; current = 0; return 0; }
int cuThreadExchangeStreamCaptureMode(int *mode) { *mode = 0; return 0; }
int cuMemGetInfo(size_t *left, size_t *all) { *left = *all = 1ull << 30; return 0; }
int cuMemAlloc(Address *at, size_t length) {
  void *made;
  if (allocations == 1024 || posix_memalign(&made, 4096, length)) return 2;
  allocated[allocations].begin = *at = (Address)(uintptr_t)made;
  allocated[allocations++].length = length;
  return 0;
}
int cuMemFree(Address at) { allocated[find(at)].length = 0; free((void *)(uintptr_t)at); return 0; }
int cuIpcGetMemHandle(void *handle, Address at) { return 801; }
int cuIpcOpenMemHandle(Address *at, struct { char bytes[64]; } handle, unsigned flags) { return 801; }
int cuIpcCloseMemHandle(Address at) { return 801; }
int cuMemGetAddressRange(Address *begin, size_t *length, Address at) {
  int i = find(at);
  if (i < 0) return 1;
  *begin = allocated[i].begin;
  *length = allocated[i].length;
  return 0;
}
int cuMemRetainAllocationHandle(Address *handle, void *at) { return 1; }
int cuMemGetAccess(uint64_t *flags, void *location, Address at) { *flags = 3; return 0; }
int cuMemcpyHtoDAsync(Address to, const void *from, size_t length, void *stream) { memcpy((void *)(uintptr_t)to, from, length); return 0; }
int cuMemcpyDtoHAsync(void *to, Address from, size_t length, void *stream) { memcpy(to, (void *)(uintptr_t)from, length); return 0; }
int cuMemcpyDtoDAsync(Address to, Address from, size_t length, void *stream) { memmove((void *)(uintptr_t)to, (void *)(uintptr_t)from, length); return 0; }
int cuMemsetD8Async(Address at, unsigned char value, size_t length, void *stream) { memset((void *)(uintptr_t)at, value, length); return 0; }
int cuPointerGetAttributes(unsigned count, int *attributes, void **values, Address at) {
  int i = find(at), found = i >= 0;
  for (unsigned n = 0; n < count; n++)
    switch (attributes[n]) {
      case 1: *(void **)values[n] = found ? (void *)0x1000 : 0; break; /* context */
      case 2: *(unsigned *)values[n] = found ? 2 : 0; break;           /* memory of a device */
      case 11: *(Address *)values[n] = found ? allocated[i].begin : 0; break;
      case 12: *(size_t *)values[n] = found ? allocated[i].length : 0; break;
      case 13: *(int *)values[n] = found; break;                       /* mapped */
      default: memset(values[n], 0, 4);
    }
  return 0;
}
int cuStreamCreateWithPriority(void **stream, unsigned flags, int priority) { *stream = malloc(8); return 0; }
int cuStreamIsCapturing(void *stream, int *captures) { *captures = 0; return 0; }
int cuEventCreate(void **event, unsigned flags) { *event = malloc(8); return 0; }
int cuEventElapsedTime(float *ms, void *first, void *last) { *ms = 1; return 0; }
static int nothing(void) { return 0; }

#define FUNCTION(name) { #name, (void *)name }
static const struct { const char *name; void *function; } functions[] = {
  FUNCTION(cuDriverGetVersion), FUNCTION(cuGetErrorName), FUNCTION(cuGetErrorString),
  FUNCTION(cuDeviceGetCount), FUNCTION(cuDeviceGet), FUNCTION(cuDeviceGetName),
  FUNCTION(cuDeviceGetUuid), FUNCTION(cuDeviceGetPCIBusId), FUNCTION(cuDeviceTotalMem),
  FUNCTION(cuDeviceGetAttribute), FUNCTION(cuDevicePrimaryCtxRetain), FUNCTION(cuCtxGetId),
  FUNCTION(cuCtxGetCurrent), FUNCTION(cuCtxPushCurrent), FUNCTION(cuCtxPopCurrent),
  FUNCTION(cuThreadExchangeStreamCaptureMode), FUNCTION(cuMemGetInfo), FUNCTION(cuMemAlloc),
  FUNCTION(cuMemFree), FUNCTION(cuMemGetAddressRange), FUNCTION(cuMemRetainAllocationHandle),
  FUNCTION(cuMemGetAccess), FUNCTION(cuMemcpyHtoDAsync), FUNCTION(cuMemcpyDtoHAsync),
  FUNCTION(cuMemcpyDtoDAsync), FUNCTION(cuMemsetD8Async), FUNCTION(cuPointerGetAttributes),
  FUNCTION(cuStreamCreateWithPriority), FUNCTION(cuIpcGetMemHandle), FUNCTION(cuIpcOpenMemHandle),
  FUNCTION(cuIpcCloseMemHandle),
  FUNCTION(cuStreamIsCapturing), FUNCTION(cuEventCreate), FUNCTION(cuEventElapsedTime),
};
static const char *const succeed[] = {
  "cuInit", "cuDeviceCanAccessPeer", "cuCtxEnablePeerAccess", "cuDevicePrimaryCtxRelease", "cuMemRelease", "cuMemHostRegister",
  "cuMemHostUnregister", "cuStreamDestroy", "cuStreamQuery", "cuStreamSynchronize", "cuStreamWaitEvent",
  "cuStreamWaitValue32", "cuStreamWriteValue32", "cuEventRecord", "cuEventQuery", "cuEventDestroy",
};

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
  *function = 0;
  for (unsigned i = 0; i < sizeof functions / sizeof *functions; i++)
    if (!strcmp(functions[i].name, name)) *function = functions[i].function;
  for (unsigned i = 0; i < sizeof succeed / sizeof *succeed; i++)
    if (!strcmp(succeed[i], name)) *function = (void *)nothing;
  if (status) *status = !*function;
  return *function ? 0 : 500;
}
