/* A `libcufile.so.0` for tests. It has the functions and structures of the real one, moves bytes
 * for real between a descriptor and memory of the host, and counts them where the real one does.
 *
 * AS_OF is the version whose functions it has. With HEADER, `cufile.h` declares them instead of the
 * lines below, so that a compiler compares the two. The rest it is told by variables; what it does,
 * by a file next to it as well, whose name is its own with `.does` behind it:
 *
 *   MOCK_CUFILE_VERSION  the version that it reports, where that is another one
 *   MOCK_CUFILE_CALLS    a file that gets the name of each call, and what settings are set to
 *   MOCK_CUFILE_DOES     words with commas between them:
 *     init-crash, init-exit, init-spin   in the initialiser
 *     open-crash, open-spin, open=CODE[:CUDA], version=CODE
 *     register=CODE
 *     errno=N, code=CODE, short, more, lie, stuck   what a read or a write does
 *     nvidia-fs, posix, anyway   which way bytes go; by POSIX also where that is forbidden
 *     keeps, late, forced   settings stay what they are, or may be changed while it is open;
 *                           compatibility mode is forced
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifdef HEADER
#include HEADER
#else
typedef void *CUfileHandle_t;
typedef struct { int err, cu_err; } CUfileError_t;
typedef struct { int type; union { int fd; void *handle; } handle; const void *ops; } CUfileDescr_t;
typedef void CUfileDrvProps_t, CUfileStatsLevel3_t;
typedef int CUFileBoolConfigParameter_t, CUFileSizeTConfigParameter_t;
typedef int CUfileDriverStatusFlags_t, CUfileP2PFlags_t;
#endif

enum { FILES = 64, BOOLS = 16, ALLOW_COMPAT = 1 };

struct file { int fd, plain; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long opened;
/* Settings, and which were set: before it opens it knows those alone. */
static bool bools[BOOLS], is_set[BOOLS];
static struct file files[FILES];
/* Totals, and the record of one GPU, as words. */
static uint64_t totals[78], gpu[31] = { 0x0706050403020100, 0x0f0e0d0c0b0a0908 };

/* The text of the file next to it. */
static char always[128];

/* What follows a word in what it is told to do. */
static const char *does(const char *word) {
  size_t len = strlen(word);
  const char *at = *always ? always : getenv("MOCK_CUFILE_DOES");
  for (; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
    if (!strncmp(at, word, len) && (strchr(",", at[len]) || word[len - 1] == '=')) return at + len;
  return NULL;
}

static int version(void) {
  const char *told = getenv("MOCK_CUFILE_VERSION");
  return told ? atoi(told) : AS_OF;
}

static void called(const char *name, long which, long value) {
  char line[99];
  int len = snprintf(line, sizeof line, which < 0 ? "%s\n" : "%s %ld %ld\n", name, which, value);
  const char *path = getenv("MOCK_CUFILE_CALLS");
  int fd = path ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;
  if (fd >= 0 && write(fd, line, len) != len) abort();
  if (fd >= 0) close(fd);
}
#define CALLED() called(__func__, -1, 0)

static CUfileError_t answer(int code) {
  CUfileError_t answer = { code, 0 };
  return answer;
}

/* The error that a word is told, else none. */
static CUfileError_t told(const char *word) {
  const char *text = does(word), *rest = text ? text + strcspn(text, ":,") : "";
  CUfileError_t answer = { text ? atoi(text) : 0, *rest == ':' ? atoi(rest + 1) : 0 };
  return answer;
}

static void spin(void) { for (;;) __asm__ volatile (""); }

__attribute__((constructor)) static void begin(void) {
  char path[4096];
  Dl_info own;
  if (dladdr(always, &own) && snprintf(path, sizeof path, "%s.does", own.dli_fname) > 0) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && read(fd, always, sizeof always - 1) < 0) abort();
    if (fd >= 0) close(fd);
  }
  if (does("init-crash")) *(volatile int *)0 = 0;
  if (does("init-exit")) _exit(3);
  if (does("init-spin")) spin();
}

CUfileError_t cuFileDriverOpen(void) {
  CALLED();
  if (does("open-crash")) *(volatile int *)0 = 0;
  if (does("open-spin")) spin();
  CUfileError_t failed = told("open=");
  if (failed.err) return failed;
  if (!is_set[ALLOW_COMPAT]) bools[ALLOW_COMPAT] = true;
  __atomic_add_fetch(&opened, 1, __ATOMIC_SEQ_CST);
  return failed;
}

#undef cuFileDriverClose
CUfileError_t cuFileDriverClose_v2(void) {
  CALLED();
  __atomic_sub_fetch(&opened, 1, __ATOMIC_SEQ_CST);
  return answer(0);
}

long cuFileUseCount(void) { return __atomic_load_n(&opened, __ATOMIC_SEQ_CST); }

/* One that is too old lacks something that is needed. */
#if AS_OF >= 1110
CUfileError_t cuFileGetVersion(int *number) {
  *number = version();
  return told("version=");
}
#endif

CUfileError_t cuFileDriverGetProperties(CUfileDrvProps_t *properties) {
  unsigned served = does("posix") ? 0 : 1 << 4, *words = (unsigned *)properties;
  unsigned all[14] = { 0, 0, 16, 0, 16384, 0, served, 0, 15, 131072, 1024, 33554432, 128, 0 };
  if (does("nvidia-fs")) all[0] = 2, all[1] = 28;
  memcpy(words, all, sizeof all);
  return answer(opened ? 0 : 5001);
}

CUfileError_t cuFileHandleRegister(CUfileHandle_t *handle, CUfileDescr_t *descriptor) {
  CALLED();
  CUfileError_t failed = told("register=");
  if (failed.err) return failed;
  if (!opened) return answer(5001);
  if (descriptor->type != 1) return answer(5018);
  if (does("posix") && !bools[ALLOW_COMPAT] && !does("anyway")) return answer(5008);
  char path[32];
  snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor->handle.fd);
  int mode = fcntl(descriptor->handle.fd, F_GETFL) & O_ACCMODE, room = -1;
  pthread_mutex_lock(&lock);
  for (int at = 0; at < FILES; at++) {
    if (files[at].plain && files[at].fd == descriptor->handle.fd) room = FILES;
    if (!files[at].plain && room < 0) room = at;
  }
  if (room >= 0 && room < FILES) {
    files[room].fd = descriptor->handle.fd;
    files[room].plain = open(path, mode | O_CLOEXEC);
    *handle = &files[room];
    totals[4]++;
  }
  pthread_mutex_unlock(&lock);
  if (room < 0 || room == FILES) return answer(room < 0 ? 5043 : 5028);
  return answer(files[room].plain < 0 ? 5025 : 0);
}

void cuFileHandleDeregister(CUfileHandle_t handle) {
  CALLED();
  struct file *file = handle;
  pthread_mutex_lock(&lock);
  close(file->plain);
  memset(file, 0, sizeof *file);
  totals[6]++;
  pthread_mutex_unlock(&lock);
}

/* The way that bytes take: a place among the counters of a GPU, by peer-to-peer DMA before that by
 * nvidia-fs and that by POSIX. */
static int way(bool is_unaligned) {
  return is_unaligned || does("posix") ? 9 : does("nvidia-fs") ? 8 : 7;
}

static void count(bool writes, ssize_t moved, bool is_unaligned) {
  uint64_t *of_gpu = gpu + (writes ? 13 : 0), *of_all = totals + (writes ? 2 : 0);
  pthread_mutex_lock(&lock);
  of_all[moved < 0]++;
  if (moved > 0) {
    totals[writes ? 13 : 12] += moved, of_gpu[2] += moved;
    of_gpu[6]++, of_gpu[way(is_unaligned)]++, of_gpu[10] += is_unaligned;
  }
  pthread_mutex_unlock(&lock);
}

static ssize_t at_once(int fd, bool writes, char *at, size_t len, off_t offset) {
  return writes ? pwrite(fd, at, len, offset) : pread(fd, at, len, offset);
}

/* Moves bytes, and says whether they had to go by POSIX for want of alignment. */
static ssize_t carry(struct file *file, bool writes, char *at, size_t len, off_t offset, bool *un) {
  *un = false;
  if (does("errno=")) return errno = atoi(does("errno=")), -1;
  if (does("code=")) return -atoi(does("code="));
  if (does("stuck")) {
    at_once(file->plain, writes, at, len / 2, offset);
    for (called("stuck", -1, 0);;) pause();
  }
  if (does("short") && len > 512) len = len / 2 & ~(size_t)511;
  if (does("lie")) return len;
  ssize_t moved = at_once(does("posix") ? file->plain : file->fd, writes, at, len, offset);
  *un = moved < 0 && errno == EINVAL;
  return *un ? at_once(file->plain, writes, at, len, offset) : moved;
}

static ssize_t move(CUfileHandle_t handle, bool writes, char *at, size_t len, off_t offset) {
  bool is_unaligned;
  ssize_t moved = carry(handle, writes, at, len, offset, &is_unaligned);
  int error = errno;
  count(writes, moved, is_unaligned);
  errno = error;
  return does("more") ? (ssize_t)len + 1 : moved;
}

ssize_t cuFileRead(CUfileHandle_t handle, void *base, size_t len, off_t offset, off_t at) {
  CALLED();
  return move(handle, false, (char *)base + at, len, offset);
}

ssize_t cuFileWrite(CUfileHandle_t handle, const void *base, size_t len, off_t offset, off_t at) {
  CALLED();
  return move(handle, true, (char *)base + at, len, offset);
}
