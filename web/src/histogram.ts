/** Distributions of numbers, and counts over time. Values that are not numbers are left out. */

export interface Histogram {
  /** The number of values. */
  count: number;
  /** The start of the first bin and the width of each. */
  start: number;
  width: number;
  bins: Uint32Array;
  /** Whether the last bin also has all larger values. */
  isOpen: boolean;
  /** Whether all values are whole numbers. */
  isWhole: boolean;
  median: number;
  p95: number;
  largest: number;
}

/**
 * The distribution of values in at most `most` bins with round bounds. The last one per cent of a long tail is in the last bin,
 * so that a few stragglers do not press all others into one bar.
 */
export function histogram(values: Float64Array, most = 24): Histogram | null {
  const known = values.filter((value) => !Number.isNaN(value)).sort();
  if (known.length === 0) return null;
  const at = (fraction: number) => known[Math.min(known.length - 1, Math.floor(fraction * known.length))] as number;
  const [smallest, largest] = [known[0] as number, known[known.length - 1] as number];
  const isWhole = known.every(Number.isInteger);
  const high = largest > 3 * at(0.99) && known.length >= 20 ? at(0.99) : largest;
  const width = binWidth((high - Math.min(0, smallest)) / most, isWhole);
  const startsAtZero = smallest >= 0 && (smallest < high / 2 || smallest === high || (isWhole && high <= most));
  const start = startsAtZero ? 0 : Math.floor(smallest / width) * width;
  const bins = new Uint32Array(Math.max(1, Math.min(most + 2, Math.floor((high - start) / width + 1e-9) + 1)));
  for (const value of known) {
    const bin = Math.min(bins.length - 1, Math.floor((value - start) / width + 1e-9));
    bins[bin] = (bins[bin] as number) + 1;
  }
  const isOpen = largest >= start + bins.length * width;
  return { count: known.length, start, width, bins, isOpen, isWhole, median: at(0.5), p95: at(0.95), largest };
}

/** A round number of at least `least`: 1, 2 or 5 times a power of ten; at least 1 for whole numbers. */
export function binWidth(least: number, isWhole: boolean): number {
  if (least <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(least));
  const width = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= least * (1 - 1e-9));
  return Math.max(isWhole ? 1 : 0, width ?? 10 * power);
}

export interface Throughput {
  /** The middle of each interval, in seconds since the epoch. */
  times: number[];
  /** Rollouts a minute. */
  ended: number[];
  failed: number[];
  /** The length of the intervals in seconds. */
  width: number;
}

const WIDTHS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400];

/** Rollouts that ended, for each minute, in at most `most` intervals; `ended` has times, 0 or NaN for none. */
export function throughput(ended: Float64Array, isFailure: (index: number) => boolean, most = 80): Throughput | null {
  let first = Number.POSITIVE_INFINITY;
  let last = 0;
  for (const time of ended) {
    if (time > 0 && time < first) first = time;
    if (time > last) last = time;
  }
  if (last === 0) return null;
  const width =
    WIDTHS.find((candidate) => (last - first) / candidate <= most - 1) ?? Math.ceil((last - first) / (most - 1));
  const origin = Math.floor(first / width) * width;
  const length = Math.floor((last - origin) / width) + 1;
  const counts = new Uint32Array(length);
  const failures = new Uint32Array(length);
  for (let index = 0; index < ended.length; index++) {
    const time = ended[index] as number;
    if (!(time > 0)) continue;
    const bin = Math.floor((time - origin) / width);
    counts[bin] = (counts[bin] as number) + 1;
    if (isFailure(index)) failures[bin] = (failures[bin] as number) + 1;
  }
  const perMinute = (count: number) => (count * 60) / width;
  return {
    times: Array.from(counts, (_, bin) => origin + (bin + 0.5) * width),
    ended: Array.from(counts, perMinute),
    failed: Array.from(failures, perMinute),
    width,
  };
}
