/* The driver of a machine without GPUs: all memory is the host's, and all else is refused.
 * KvikIO asks a driver about host memory as well, so that it moves none where there is no driver.
 */

enum { NO_DEVICE = 100 };

#define REFUSES(name) int name(void) { return NO_DEVICE; }

int cuPointerGetAttributes(unsigned count, int *names, void **values, unsigned long long address) {
    (void)names, (void)address;
    for (unsigned index = 0; index < count; index++) {
        *(int *)values[index] = 0;
    }
    return 0;
}

int cuGetErrorName(int error, const char **name) {
    (void)error;
    *name = "CUDA_ERROR_NO_DEVICE";
    return 0;
}

int cuGetErrorString(int error, const char **text) {
    (void)error;
    *text = "no device";
    return 0;
}

int cuDriverGetVersion(int *version) {
    *version = 13000;
    return 0;
}

REFUSES(cuInit)
REFUSES(cuCtxCreate_v4)
REFUSES(cuCtxDestroy_v2)
REFUSES(cuCtxGetCurrent)
REFUSES(cuCtxGetDevice)
REFUSES(cuCtxPopCurrent_v2)
REFUSES(cuCtxPushCurrent_v2)
REFUSES(cuDeviceGet)
REFUSES(cuDeviceGetAttribute)
REFUSES(cuDeviceGetCount)
REFUSES(cuDevicePrimaryCtxRelease_v2)
REFUSES(cuDevicePrimaryCtxRetain)
REFUSES(cuEventCreate)
REFUSES(cuEventDestroy_v2)
REFUSES(cuEventQuery)
REFUSES(cuEventRecord)
REFUSES(cuEventSynchronize)
REFUSES(cuLaunchHostFunc)
REFUSES(cuMemFreeHost)
REFUSES(cuMemGetAddressRange_v2)
REFUSES(cuMemHostAlloc)
REFUSES(cuMemHostRegister_v2)
REFUSES(cuMemHostUnregister)
REFUSES(cuMemcpyAsync)
REFUSES(cuMemcpyBatchAsync_v2)
REFUSES(cuMemcpyDtoHAsync_v2)
REFUSES(cuMemcpyHtoDAsync_v2)
REFUSES(cuPointerGetAttribute)
REFUSES(cuStreamCreate)
REFUSES(cuStreamDestroy_v2)
REFUSES(cuStreamSynchronize)
