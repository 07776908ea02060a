// The scan for one instruction set: int4.cpp includes it once for each, in a namespace of its own that
// has TARGET, the attribute of its functions; MOST, the queries whose sums fit its registers; and
// `multiply<Q>`: the sums of the products of code (0 to 15) and query (-127 to 127), for each of Q
// queries and each row of a block: `sums`, (Q, ROWS). All compute the same whole numbers.

TARGET INLINE float product(const float *left, const float *right, int dimension) {
  float sums[16] = {0};
  int d = 0;
  for (; d + 16 <= dimension; d += 16)
    for (int lane = 0; lane < 16; lane++) sums[lane] += left[d + lane] * right[d + lane];
  for (; d < dimension; d++) sums[d % 16] += left[d] * right[d];
  float sum = 0;
  for (float each : sums) sum += each;
  return sum;
}

template <int Q, bool MASKED>
TARGET INLINE void scan_for(const Scan &scan, int64_t cluster, const int32_t *wanting, Best *best) {
  const int8_t *numbers[Q];
  float base[Q], scale[Q], shift[Q];
  for (int q = 0; q < Q; q++) {
    const Rounded &query = scan.rounded[wanting[q]];
    numbers[q] = query.numbers.data(), scale[q] = query.scale, shift[q] = query.shift;
    base[q] = product(scan.centroids + cluster * scan.dimension, query.query, scan.dimension);
  }
  const int64_t *blocks = scan.blocks[cluster];
  int64_t at = 0;
  for (int64_t left = scan.row_counts[cluster]; left > 0; left -= ROWS, at++) {
    const int64_t row = scan.row_of(cluster, at);
    const uint32_t bits = (left < ROWS ? (1 << left) - 1 : EVERY) & (MASKED ? scan.visible(row) : EVERY);
    if (MASKED && !bits) continue;
    float hidden[ROWS];
    if (MASKED)
      for (int r = 0; r < ROWS; r++) hidden[r] = bits >> r & 1 ? 0 : NOTHING;
    const uint8_t *block = scan.codes[cluster] + (blocks ? blocks[at] : at) * scan.block_bytes();
    alignas(64) int32_t sums[Q * ROWS];
    float steps[ROWS];
    multiply<Q>(block, scan.groups(), numbers, sums);
    std::memcpy(steps, block + scan.groups() * GROUP_BYTES, sizeof steps);
    for (int q = 0; q < Q; q++) {
      Best &mine = best[wanting[q]];
      float scores[ROWS], highest = NOTHING;
      for (int r = 0; r < ROWS; r++) scores[r] = base[q] + scale[q] * steps[r] * (sums[q * ROWS + r] - shift[q]);
      if (MASKED)
        for (int r = 0; r < ROWS; r++) scores[r] += hidden[r];
      for (int r = 0; r < ROWS; r++) highest = std::max(highest, scores[r]);
      if (highest < mine.scores[0]) continue;
      for (uint32_t rest = bits; rest; rest &= rest - 1) {
        const int r = __builtin_ctz(rest);
        mine.add(scores[r], row + r);
      }
    }
  }
}

// Scans clusters until there are no more. `scan_for` is compiled for each number of queries.
template <bool MASKED>
TARGET void scan_runs(Scan &scan, Best *best) {
  for (size_t at; (at = scan.next++) < scan.runs.size();) {
    const int64_t cluster = scan.runs[at].cluster;
    if (MASKED && scan.is_hidden(cluster)) continue;
    const size_t end = scan.runs[at].end;
    for (size_t first = scan.runs[at].first; first < end; first += MOST) {
      const int32_t *some = scan.wanting.data() + first;
      switch (std::min<size_t>(MOST, end - first)) {
      case 1: scan_for<1, MASKED>(scan, cluster, some, best); break;
#if MOST >= 4
      case 2: scan_for<2, MASKED>(scan, cluster, some, best); break;
      case 3: scan_for<3, MASKED>(scan, cluster, some, best); break;
      case 4: scan_for<4, MASKED>(scan, cluster, some, best); break;
#endif
#if MOST >= 8
      case 5: scan_for<5, MASKED>(scan, cluster, some, best); break;
      case 6: scan_for<6, MASKED>(scan, cluster, some, best); break;
      case 7: scan_for<7, MASKED>(scan, cluster, some, best); break;
      case 8: scan_for<8, MASKED>(scan, cluster, some, best); break;
#endif
      }
    }
  }
}

TARGET void scan_clusters(Scan &scan, Best *best) {
  scan.mask ? scan_runs<true>(scan, best) : scan_runs<false>(scan, best);
}
