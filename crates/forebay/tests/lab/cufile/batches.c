/* The rest of `library.c`, of which this is compiled as a part: batches, and calls in a stream's
 * order. */

enum { CANCELLED = 8, COMPLETE = 16, FAILED = 64 };

struct batch { unsigned max, count; bool is_cancelled; CUfileIOEvents_t events[]; };

CUfileError_t cuFileBatchIOSetUp(CUfileBatchHandle_t *out, unsigned max) {
  CALLED();
  struct batch *batch = calloc(1, sizeof *batch + max * sizeof *batch->events);
  batch->max = max;
  *out = batch;
  return answer(max ? 0 : 5022);
}

CUfileError_t cuFileBatchIOSubmit(CUfileBatchHandle_t handle, unsigned count,
                                  CUfileIOParams_t *all, unsigned flags) {
  CALLED();
  struct batch *batch = handle;
  CUfileError_t failed = told("batch=");
  if (failed.err) return failed;
  if (count > batch->max - batch->count) return answer(5037);
  pthread_mutex_lock(&lock);
  totals[22]++, totals[50]++, totals[does("posix") ? 44 : does("nvidia-fs") ? 40 : 42]++;
  pthread_mutex_unlock(&lock);
  for (CUfileIOParams_t *one = all; one < all + count; one++) {
    char *at = (char *)one->u.batch.devPtr_base + one->u.batch.devPtr_offset;
    bool un;
    ssize_t moved = does("hang") ? 0 : carry(one->fh, one->opcode, at, one->u.batch.size,
                                             one->u.batch.file_offset, &un);
    if (does("more")) moved = one->u.batch.size + 1;
    CUfileIOEvents_t event = { one->cookie, moved < 0 ? FAILED : COMPLETE, moved };
    batch->events[batch->count++] = event;
    pthread_mutex_lock(&lock);
    if (moved > 0) totals[one->opcode ? 53 : 52] += moved;
    pthread_mutex_unlock(&lock);
  }
  return answer(0);
}

CUfileError_t cuFileBatchIOGetStatus(CUfileBatchHandle_t handle, unsigned min, unsigned *count,
                                     CUfileIOEvents_t *out, struct timespec *limit) {
  struct batch *batch = handle;
  unsigned room = *count, done = 0;
  if (does("hang") && !batch->is_cancelled) room = 0;
  for (; done < room && batch->count; done++) {
    unsigned at = does("reorder") ? batch->count - 1 : 0;
    out[done] = batch->events[at];
    if (batch->is_cancelled) out[done].status = CANCELLED;
    batch->count--;
    memmove(batch->events + at, batch->events + at + 1, (batch->count - at) * sizeof *out);
  }
  *count = done;
  return answer(0);
}

CUfileError_t cuFileBatchIOCancel(CUfileBatchHandle_t handle) {
  CALLED();
  ((struct batch *)handle)->is_cancelled = does("hang");
  return answer(0);
}

void cuFileBatchIODestroy(CUfileBatchHandle_t handle) {
  CALLED();
  free(handle);
}

/* There is no stream on a host: what is queued is done. */
CUfileError_t cuFileReadAsync(CUfileHandle_t handle, void *base, size_t *len, off_t *offset,
                              off_t *at, ssize_t *done, CUstream stream) {
  CALLED();
  *done = move(handle, false, (char *)base + *at, *len, *offset);
  return answer(0);
}

CUfileError_t cuFileWriteAsync(CUfileHandle_t handle, void *base, size_t *len, off_t *offset,
                               off_t *at, ssize_t *done, CUstream stream) {
  CALLED();
  *done = move(handle, true, (char *)base + *at, *len, *offset);
  return answer(0);
}

CUfileError_t cuFileStreamRegister(CUstream stream, unsigned flags) {
  CALLED();
  return answer(flags > 15 ? 5022 : 0);
}

CUfileError_t cuFileStreamDeregister(CUstream stream) {
  CALLED();
  return answer(0);
}
