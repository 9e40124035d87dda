// The references of `python benches/gpus`: reads by hand, as a library that it loads.
//
// nvcc -O3 -std=c++17 -arch=native -shared -Xcompiler -fPIC -o by_hand.so by_hand.cu
//
// A failed call ends the process with its text.

#include <cuda_runtime.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#define CHECK(call) check(#call, (call))

namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void fail(const char* call, const char* reason) {
    std::fprintf(stderr, "by hand: %s: %s\n", call, reason);
    std::_Exit(1);
}

void check(const char* call, cudaError_t error) {
    if (error != cudaSuccess) fail(call, cudaGetErrorString(error));
}

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

void sleep(double seconds) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

double cpu_seconds() {
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    auto seconds = [](timeval time) { return time.tv_sec + 1e-6 * time.tv_usec; };
    return seconds(used.ru_utime) + seconds(used.ru_stime);
}

void read_at(int file, char* target, size_t len, size_t offset) {
    if (pread(file, target, len, static_cast<off_t>(offset)) != static_cast<ssize_t>(len)) {
        fail("pread", "the file ends early, or cannot be read");
    }
}

cudaStream_t new_stream() {
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

/// Pinned huge pages, kept for the next call.
char* pinned(size_t len) {
    static char* memory = nullptr;
    static size_t held = 0;
    if (len > held) {
        if (memory != nullptr) {
            CHECK(cudaHostUnregister(memory));
            munmap(memory, held);
        }
        held = (len + (2 << 20) - 1) & ~size_t{(2 << 20) - 1};
        constexpr int ANONYMOUS = MAP_PRIVATE | MAP_ANONYMOUS;
        void* mapped = mmap(nullptr, held, PROT_READ | PROT_WRITE, ANONYMOUS, -1, 0);
        if (mapped == MAP_FAILED) fail("mmap", "no memory");
        madvise(mapped, held, MADV_HUGEPAGE);
        std::memset(mapped, 1, held);
        CHECK(cudaHostRegister(mapped, held, cudaHostRegisterDefault));
        memory = static_cast<char*>(mapped);
    }
    return memory;
}

struct Piece {
    const char* source;
    char* target;
    size_t len;
};

__global__ void gather(const Piece* pieces, int count) {
    for (int i = blockIdx.x; i < count; i += gridDim.x) {
        const uint4* from = reinterpret_cast<const uint4*>(pieces[i].source);
        uint4* to = reinterpret_cast<uint4*>(pieces[i].target);
        size_t words = pieces[i].len / sizeof(uint4), step = blockDim.x, at = threadIdx.x;
        for (; at + 3 * step < words; at += 4 * step) {
            uint4 a = from[at], b = from[at + step];
            uint4 c = from[at + 2 * step], d = from[at + 3 * step];
            to[at] = a, to[at + step] = b, to[at + 2 * step] = c, to[at + 3 * step] = d;
        }
        for (; at < words; at += step) to[at] = from[at];
    }
}

/// Pieces that many threads post and one thread copies: as a batch of copies, or by a kernel.
class Submitter {
public:
    Submitter(int threads, int depth, bool by_kernel)
        : depth(depth), by_kernel(by_kernel), pieces(threads * depth), left(threads),
          done(threads) {}

    void begin(int thread) {
        std::lock_guard guard(lock);
        left[thread] = depth;
    }

    void post(int cell, Piece piece) {
        pieces[cell] = piece;
        bool first;
        {
            std::lock_guard guard(lock);
            first = posted.empty();
            posted.push_back(cell);
        }
        if (first) arrived.notify_one();
    }

    void wait(int thread) {
        std::unique_lock guard(lock);
        done[thread].wait(guard, [&] { return left[thread] == 0; });
    }

    /// Copies until `end`.
    void run(int device) {
        CHECK(cudaSetDevice(device));
        Flight flights[2];
        for (Flight& flight : flights) {
            flight.stream = new_stream();
            CHECK(cudaEventCreateWithFlags(&flight.event, cudaEventDisableTiming));
            CHECK(cudaMallocHost(&flight.pieces, pieces.size() * sizeof(Piece)));
        }
        while (!ended) {
            Flight* idle = nullptr;
            bool is_busy = false;
            for (Flight& flight : flights) {
                bool flies = !flight.cells.empty();
                if (flies && cudaEventQuery(flight.event) == cudaSuccess) finish(flight);
                if (flight.cells.empty()) idle = &flight;
                else is_busy = true;
            }
            if (idle == nullptr) {
                std::this_thread::yield();
                continue;
            }
            {
                std::unique_lock guard(lock);
                if (posted.empty() && !is_busy) {
                    arrived.wait_for(guard, std::chrono::milliseconds(1));
                }
                idle->cells.swap(posted);
            }
            if (!idle->cells.empty()) copy(*idle);
        }
        for (Flight& flight : flights) {
            CHECK(cudaStreamDestroy(flight.stream));
            CHECK(cudaEventDestroy(flight.event));
            CHECK(cudaFreeHost(flight.pieces));
        }
    }

    void end() { ended = true; }

private:
    struct Flight {
        cudaStream_t stream;
        cudaEvent_t event;
        std::vector<int> cells;
        Piece* pieces;
    };

    void finish(Flight& flight) {
        std::vector<int> woken;
        {
            std::lock_guard guard(lock);
            for (int cell : flight.cells) {
                if (--left[cell / depth] == 0) woken.push_back(cell / depth);
            }
        }
        flight.cells.clear();
        for (int thread : woken) done[thread].notify_one();
    }

    void copy(Flight& flight) {
        int count = static_cast<int>(flight.cells.size());
        for (int i = 0; i < count; i++) flight.pieces[i] = pieces[flight.cells[i]];
        if (by_kernel) {
            gather<<<std::min(32, count), 512, 0, flight.stream>>>(flight.pieces, count);
            CHECK(cudaGetLastError());
        } else {
            std::vector<const void*> from(count);
            std::vector<void*> to(count);
            std::vector<size_t> len(count);
            for (int i = 0; i < count; i++) {
                const Piece& piece = flight.pieces[i];
                from[i] = piece.source, to[i] = piece.target, len[i] = piece.len;
            }
            cudaMemcpyAttributes attributes{};
            attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
            size_t first = 0;
            for (int i = 0; i < count; i += 512) {
                size_t some = std::min(512, count - i);
                CHECK(cudaMemcpyBatchAsync(&to[i], &from[i], &len[i], some, &attributes, &first, 1,
                                           flight.stream));
            }
        }
        CHECK(cudaEventRecord(flight.event, flight.stream));
    }

    const int depth;
    const bool by_kernel;
    std::vector<Piece> pieces;
    std::mutex lock;
    std::vector<int> posted, left;
    std::condition_variable arrived;
    std::vector<std::condition_variable> done;
    std::atomic<bool> ended{false};
};

}  // namespace

extern "C" {

/// Bytes a second of pinned memory to the first `gpus` GPUs at once: the best of three.
double links(int gpus) {
    constexpr size_t LEN = 64 << 20, COPIES = 32;
    static std::vector<char*> host, device;
    for (int gpu = static_cast<int>(host.size()); gpu < gpus; gpu++) {
        CHECK(cudaSetDevice(gpu));
        CHECK(cudaMallocHost(&host.emplace_back(), LEN));
        CHECK(cudaMalloc(&device.emplace_back(), LEN));
    }
    double best = 0;
    for (int round = 0; round < 3; round++) {
        auto start = Clock::now();
        std::vector<std::thread> threads;
        for (int gpu = 0; gpu < gpus; gpu++) {
            threads.emplace_back([gpu] {
                CHECK(cudaSetDevice(gpu));
                cudaStream_t stream = new_stream();
                for (size_t i = 0; i < COPIES; i++) {
                    CHECK(cudaMemcpyAsync(device[gpu], host[gpu], LEN, cudaMemcpyDefault, stream));
                }
                CHECK(cudaStreamSynchronize(stream));
                CHECK(cudaStreamDestroy(stream));
            });
        }
        for (auto& thread : threads) thread.join();
        best = std::max(best, gpus * COPIES * LEN / seconds_since(start));
    }
    CHECK(cudaSetDevice(0));
    return best;
}

/// What one thread reads with: a stream and pinned memory.
struct Reader {
    cudaStream_t stream;
    char* pinned;
};

Reader* new_reader(size_t len) {
    Reader* reader = new Reader{new_stream(), nullptr};
    CHECK(cudaMallocHost(&reader->pinned, len));
    return reader;
}

/// One read: `pread`, a copy, and a wait.
void read_one(Reader* reader, int file, size_t offset, size_t len, void* target) {
    read_at(file, reader->pinned, len, offset);
    CHECK(cudaMemcpyAsync(target, reader->pinned, len, cudaMemcpyHostToDevice, reader->stream));
    CHECK(cudaStreamSynchronize(reader->stream));
}

/// Random reads of `piece` bytes of the first `len` of a file to the same offsets of `target` on
/// GPU 0: `threads` threads, each `depth` reads in a round. Method A copies each read on the stream
/// of its thread. One thread copies the reads of all threads, as batches (B) or by a kernel (C).
/// `result`: bytes a second, the 99th percentile of a round in seconds, CPU seconds per 10^9 bytes.
void small(const char* path, char* target, size_t len, size_t piece, int threads, int depth,
           char method, double seconds, double* result) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    char* cells = pinned(threads * depth * piece);
    Submitter submitter(threads, depth, method == 'C');
    std::atomic<bool> counting{false}, ended{false};
    std::atomic<size_t> reads{0};
    std::vector<std::vector<double>> rounds(threads);
    std::vector<std::thread> all;
    for (int thread = 0; thread < threads; thread++) {
        all.emplace_back([&, thread] {
            CHECK(cudaSetDevice(0));
            cudaStream_t stream = new_stream();
            size_t random = 88172645463325252u + thread * 7919, offset = 0;
            char* cell = nullptr;
            while (!ended) {
                auto start = Clock::now();
                bool counts = counting;
                if (method != 'A') submitter.begin(thread);
                for (int i = 0; i < depth; i++) {
                    random ^= random << 13, random ^= random >> 7, random ^= random << 17;
                    offset = random % (len / piece) * piece;
                    cell = cells + (thread * depth + i) * piece;
                    read_at(file, cell, piece, offset);
                    char* to = target + offset;
                    if (method != 'A') submitter.post(thread * depth + i, {cell, to, piece});
                    else CHECK(cudaMemcpyAsync(to, cell, piece, cudaMemcpyHostToDevice, stream));
                }
                if (method != 'A') submitter.wait(thread);
                else CHECK(cudaStreamSynchronize(stream));
                if (counts) rounds[thread].push_back(seconds_since(start));
                reads += depth;
            }
            std::vector<char> copied(piece);
            CHECK(cudaMemcpy(copied.data(), target + offset, piece, cudaMemcpyDeviceToHost));
            if (std::memcmp(copied.data(), cell, piece) != 0) fail("small", "wrong bytes");
            CHECK(cudaStreamDestroy(stream));
        });
    }
    std::thread copier;
    if (method != 'A') copier = std::thread([&] { submitter.run(0); });
    sleep(0.05);
    size_t before = reads;
    double cpu = cpu_seconds();
    auto start = Clock::now();
    counting = true;
    sleep(seconds);
    double bytes = static_cast<double>((reads - before) * piece);
    result[0] = bytes / seconds_since(start);
    result[2] = (cpu_seconds() - cpu) / (bytes / 1e9);
    ended = true;
    for (auto& thread : all) thread.join();
    submitter.end();
    if (copier.joinable()) copier.join();
    close(file);
    std::vector<double> merged;
    for (auto& some : rounds) merged.insert(merged.end(), some.begin(), some.end());
    std::sort(merged.begin(), merged.end());
    result[1] = merged.empty() ? NAN : merged[merged.size() * 99 / 100];
}

}  // extern "C"
