// Encodes and scans codes of 4 bits a number. A scan goes cluster by cluster, and reads each block of
// codes once for all queries that want its cluster. int4.py has the interface; docs/concepts.md has
// the picture.
//
// A number n of a code, 0 to 15, stands for (n - 7.5) * step; each row has a step of its own. A block
// has 16 rows: for each 8 dimensions 64 bytes, byte 4 * row + d of which has dimension d in its low
// bits and dimension d + 4 in its high bits; then the 16 steps, float32. Little-endian machines only.

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#include <sys/auxv.h>
#endif

#define INLINE __attribute__((always_inline)) inline

namespace {

constexpr int ROWS = 16;
constexpr uint32_t EVERY = (1 << ROWS) - 1;
constexpr int GROUP_BYTES = 64;        // 8 dimensions of 16 rows
constexpr int STEPS = 14;              // sizes of a step that are tried
constexpr int64_t THREAD_PRODUCTS = 6 << 20; // fewer products of numbers do not pay a thread
constexpr float NOTHING = -std::numeric_limits<float>::infinity();

// The best rows of a query so far, in memory of the caller: a heap with the worst in front. It is full
// from the beginning, of rows -1. Of equal scores the lower row is the better, so what is found does not
// depend on the order of clusters.
struct Best {
  int64_t *rows;
  float *scores;
  int64_t count;

  bool is_worse(int64_t left, float score, int64_t row) const {
    return scores[left] < score || (scores[left] == score && rows[left] > row);
  }

  void add(float score, int64_t row) {
    if (!is_worse(0, score, row)) return;
    int64_t at = 0;
    for (int64_t child; (child = 2 * at + 1) < count; at = child) {
      child += child + 1 < count && is_worse(child + 1, scores[child], rows[child]);
      if (!is_worse(child, score, row)) break;
      scores[at] = scores[child];
      rows[at] = rows[child];
    }
    scores[at] = score;
    rows[at] = row;
  }
};

// A query, (dimension,) float32, and what scans have found for it.
struct Asked {
  const float *query;
  Best best;
};

// A query in 8 bits a number: `query` is about `scale` times `numbers`; `shift`: 7.5 times their sum.
struct Rounded {
  const float *query;
  std::vector<int8_t> numbers;
  float scale, shift;

  Rounded(const float *query, int dimension) : query(query), numbers((dimension + 7) / 8 * 8, 0) {
    float most = 1e-30f;
    for (int d = 0; d < dimension; d++) most = std::max(most, std::fabs(query[d]));
    scale = most / 127;
    int total = 0;
    for (int d = 0; d < dimension; d++) total += numbers[d] = (int8_t)std::lrint(query[d] / scale);
    shift = 7.5f * total;
  }
};

// A cluster in memory and the queries that want it: `wanting[first]` to `wanting[end]` of the scan.
// `rank`: the least place that it has among the clusters of a query.
struct Run {
  int64_t rank, cluster;
  size_t first, end;
};

// What all threads of a scan read. The runs that are nearest to any query come first: then most rows
// of the others are worse than what is there. `blocks`: the numbers of the blocks of each cluster, from
// `codes` on; null where one is behind the other. `first_rows`: the rows of a cluster follow each other;
// null: the rows of block b are 16 b and the next 15. `mask`: a bit for each row that may be found;
// null: all may.
struct Scan {
  const uint8_t *const *codes;
  const int64_t *const *blocks;
  const int64_t *first_rows, *row_counts;
  const float *centroids;
  const uint8_t *mask;
  int dimension;
  std::vector<Rounded> rounded;
  std::vector<int32_t> wanting;
  std::vector<Run> runs;
  std::atomic<size_t> next{0};

  int groups() const { return (dimension + 7) / 8; }
  int64_t block_bytes() const { return groups() * GROUP_BYTES + ROWS * 4; }

  // The first row of the block `at` of a cluster.
  int64_t row_of(int64_t cluster, int64_t at) const {
    return ROWS * (first_rows ? at : blocks[cluster][at]) + (first_rows ? first_rows[cluster] : 0);
  }

  // The bits of the rows of a block that begins at `row`.
  uint32_t visible(int64_t row) const {
    uint32_t bits;
    std::memcpy(&bits, mask + row / 8, sizeof bits);
    return bits >> row % 8 & EVERY;
  }

  bool is_hidden(int64_t cluster) const {
    for (int64_t at = 0; ROWS * at < row_counts[cluster]; at++)
      if (visible(row_of(cluster, at))) return false;
    return true;
  }
};

namespace plain {
#define TARGET
#define MOST 1
template <int Q>
void multiply(const uint8_t *block, int groups, const int8_t *const *queries, int32_t *sums) {
  std::memset(sums, 0, sizeof(int32_t) * ROWS);
  for (int group = 0; group < groups; group++, block += GROUP_BYTES) {
    const int8_t *query = queries[0] + 8 * group;
    for (int row = 0; row < ROWS; row++)
      for (int d = 0; d < 4; d++)
        sums[row] += (block[4 * row + d] & 15) * query[d] + (block[4 * row + d] >> 4) * query[d + 4];
  }
}
#include "int4_scan.h"
#undef TARGET
#undef MOST
} // namespace plain

#if defined(__x86_64__)

INLINE int32_t four(const int8_t *numbers) {
  int32_t found;
  std::memcpy(&found, numbers, 4);
  return found;
}

namespace avx512 {
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,prefer-vector-width=512")))
#define MOST 8
template <int Q>
TARGET INLINE void multiply(const uint8_t *block, int groups, const int8_t *const *queries, int32_t *sums) {
  const __m512i mask = _mm512_set1_epi8(15);
  __m512i low[Q], high[Q];
  for (int q = 0; q < Q; q++) low[q] = high[q] = _mm512_setzero_si512();
  for (int group = 0; group < groups; group++) {
    const __m512i codes = _mm512_loadu_si512(block + group * GROUP_BYTES);
    const __m512i first = _mm512_and_si512(codes, mask);
    const __m512i second = _mm512_and_si512(_mm512_srli_epi16(codes, 4), mask);
    for (int q = 0; q < Q; q++) {
      const int8_t *query = queries[q] + 8 * group;
      low[q] = _mm512_dpbusd_epi32(low[q], first, _mm512_set1_epi32(four(query)));
      high[q] = _mm512_dpbusd_epi32(high[q], second, _mm512_set1_epi32(four(query + 4)));
    }
  }
  for (int q = 0; q < Q; q++) _mm512_storeu_si512(sums + q * ROWS, _mm512_add_epi32(low[q], high[q]));
}
#include "int4_scan.h"
#undef TARGET
#undef MOST
} // namespace avx512

namespace avx2 {
#define TARGET __attribute__((target("avx2,fma")))
#define MOST 4
template <int Q>
TARGET INLINE void multiply(const uint8_t *block, int groups, const int8_t *const *queries, int32_t *sums) {
  // Two products are at most 2 * 15 * 127, so four such sums fit 16 bits.
  const __m256i mask = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
  __m256i total[Q][2];
  for (int q = 0; q < Q; q++) total[q][0] = total[q][1] = _mm256_setzero_si256();
  for (int group = 0; group < groups; group++)
    for (int half = 0; half < 2; half++) {
      const __m256i codes = _mm256_loadu_si256((const __m256i *)(block + group * GROUP_BYTES + half * 32));
      const __m256i first = _mm256_and_si256(codes, mask);
      const __m256i second = _mm256_and_si256(_mm256_srli_epi16(codes, 4), mask);
      for (int q = 0; q < Q; q++) {
        const int8_t *query = queries[q] + 8 * group;
        const __m256i low = _mm256_maddubs_epi16(first, _mm256_set1_epi32(four(query)));
        const __m256i high = _mm256_maddubs_epi16(second, _mm256_set1_epi32(four(query + 4)));
        total[q][half] = _mm256_add_epi32(total[q][half], _mm256_madd_epi16(_mm256_add_epi16(low, high), ones));
      }
    }
  for (int q = 0; q < Q; q++)
    for (int half = 0; half < 2; half++) _mm256_storeu_si256((__m256i *)(sums + q * ROWS + half * 8), total[q][half]);
}
#include "int4_scan.h"
#undef TARGET
#undef MOST
} // namespace avx2

#elif defined(__aarch64__)

namespace neon {
#define TARGET __attribute__((target("arch=armv8.2-a+dotprod")))
#define MOST 4
template <int Q>
TARGET INLINE void multiply(const uint8_t *block, int groups, const int8_t *const *queries, int32_t *sums) {
  const uint8x16_t mask = vdupq_n_u8(15);
  int32x4_t total[Q][4];
  for (int q = 0; q < Q; q++)
    for (int part = 0; part < 4; part++) total[q][part] = vdupq_n_s32(0);
  for (int group = 0; group < groups; group++)
    for (int part = 0; part < 4; part++) {
      const uint8x16_t codes = vld1q_u8(block + group * GROUP_BYTES + part * 16);
      const int8x16_t first = vreinterpretq_s8_u8(vandq_u8(codes, mask));
      const int8x16_t second = vreinterpretq_s8_u8(vshrq_n_u8(codes, 4));
      for (int q = 0; q < Q; q++) {
        const int8x8_t numbers = vld1_s8(queries[q] + 8 * group);
        total[q][part] = vdotq_lane_s32(total[q][part], first, numbers, 0);
        total[q][part] = vdotq_lane_s32(total[q][part], second, numbers, 1);
      }
    }
  for (int q = 0; q < Q; q++)
    for (int part = 0; part < 4; part++) vst1q_s32(sums + q * ROWS + part * 4, total[q][part]);
}
#include "int4_scan.h"
#undef TARGET
#undef MOST
} // namespace neon

#endif

struct Kernel {
  const char *name;
  void (*scan)(Scan &, Best *);
};

std::vector<Kernel> kernels() {
  std::vector<Kernel> found;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512vnni"))
    found.push_back({"avx512", avx512::scan_clusters});
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) found.push_back({"avx2", avx2::scan_clusters});
#elif defined(__aarch64__)
  if (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) found.push_back({"neon", neon::scan_clusters});
#endif
  found.push_back({"plain", plain::scan_clusters});
  return found;
}

} // namespace

extern "C" {

// Returns the name of the kernel `number`, the fastest first; null where there are no more.
const char *int4_kernel(int number) {
  const std::vector<Kernel> known = kernels();
  return number < (int)known.size() ? known[number].name : nullptr;
}

// Encodes `count` rows minus their centroid, (count, dimension) float32. Writes whole blocks. Of the
// steps that are tried, the one is taken whose code has the least angle to the row. It is then scaled:
// the product of row and code is that of the row with itself, so that estimates are not too small.
void int4_encode(const float *rows, int64_t count, int dimension, uint8_t *blocks) {
  const int groups = (dimension + 7) / 8;
  const int64_t block_bytes = groups * GROUP_BYTES + ROWS * 4;
  std::memset(blocks, 0, (count + ROWS - 1) / ROWS * block_bytes);
  for (int64_t at = 0; at < count; at++) {
    const float *row = rows + at * dimension;
    float most = 0, square = 0;
    for (int d = 0; d < dimension; d++) {
      most = std::max(most, std::fabs(row[d]));
      square += row[d] * row[d];
    }
    if (most == 0) continue;
    const auto code_of = [&](float number, float inverse) {
      return (int)std::min(std::max(number * inverse + 8.0f, 0.0f), 15.99f);
    };
    float best = -1, inverse = 0, step = 0;
    for (int number = 0; number < STEPS; number++) {
      const float tried = 7.5f / most / (0.35f + 0.05f * number);
      float with = 0, length = 0;
      for (int d = 0; d < dimension; d++) {
        const float code = code_of(row[d], tried) - 7.5f;
        with += code * row[d];
        length += code * code;
      }
      const float cosine = with / std::sqrt(length);
      if (cosine > best) best = cosine, inverse = tried, step = square / with;
    }
    uint8_t *block = blocks + at / ROWS * block_bytes;
    const int place = at % ROWS;
    for (int d = 0; d < dimension; d++)
      block[d / 8 * GROUP_BYTES + 4 * place + d % 4] |= code_of(row[d], inverse) << (d % 8 / 4 * 4);
    std::memcpy(block + groups * GROUP_BYTES + 4 * place, &step, 4);
  }
}

// Scans with the kernel `kernel`, on up to `threads` threads. codes, blocks, first_rows, row_counts: of
// each cluster, see Scan; codes are null where they are not in memory. centroids: (clusters,
// dimension) float32. mask: see Scan. The clusters of query i are probes[starts[i]] to
// probes[starts[i + 1]], nearest first.
void int4_scan(int kernel, int threads, const uint8_t *const *codes, const int64_t *const *blocks,
               const int64_t *first_rows, const int64_t *row_counts, const float *centroids,
               const uint8_t *mask, int dimension, const Asked *asked, int64_t n, const int64_t *starts,
               const int64_t *probes) {
  const auto scan_some = kernels()[kernel].scan;
  Scan scan{codes, blocks, first_rows, row_counts, centroids, mask, dimension, {}, {}, {}};
  std::vector<std::array<int64_t, 3>> wishes; // cluster, query, place of the cluster in the query's
  int64_t products = 0, rows = 0;
  for (int64_t i = 0; i < n; i++) {
    scan.rounded.emplace_back(asked[i].query, dimension);
    rows += asked[i].best.count;
    for (int64_t at = starts[i]; at < starts[i + 1]; at++)
      if (codes[probes[at]]) {
        wishes.push_back({probes[at], i, at - starts[i]});
        products += row_counts[probes[at]] * dimension;
      }
  }
  std::sort(wishes.begin(), wishes.end());
  for (const auto &[cluster, query, rank] : wishes) {
    if (scan.runs.empty() || scan.runs.back().cluster != cluster)
      scan.runs.push_back({rank, cluster, scan.wanting.size(), 0});
    scan.wanting.push_back((int32_t)query);
    scan.runs.back().rank = std::min(scan.runs.back().rank, rank);
    scan.runs.back().end = scan.wanting.size();
  }
  std::sort(scan.runs.begin(), scan.runs.end(), [](const Run &left, const Run &right) {
    return std::pair(left.rank, left.cluster) < std::pair(right.rank, right.cluster);
  });

  std::vector<Best> best;
  for (int64_t i = 0; i < n; i++) best.push_back(asked[i].best);
  struct Other {
    std::vector<float> scores;
    std::vector<int64_t> rows;
    std::vector<Best> best;
    std::thread thread;
  };
  std::vector<Other> others(std::min<int64_t>(threads - 1, products / THREAD_PRODUCTS));
  for (Other &other : others) {
    other.scores.resize(rows, NOTHING), other.rows.resize(rows, -1);
    int64_t at = 0;
    for (const Best &each : best) {
      other.best.push_back({other.rows.data() + at, other.scores.data() + at, each.count});
      at += each.count;
    }
    other.thread = std::thread([&] { scan_some(scan, other.best.data()); });
  }
  scan_some(scan, best.data());
  for (Other &other : others) {
    other.thread.join();
    for (int64_t i = 0; i < n; i++)
      for (int64_t at = 0; at < best[i].count; at++) best[i].add(other.best[i].scores[at], other.best[i].rows[at]);
  }
}
}
