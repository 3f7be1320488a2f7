import { useMemo } from "preact/hooks";
import { FAILURES } from "../../filters";
import { formatCompact, formatDuration, formatNumber } from "../../format";
import { type Histogram, histogram, throughput } from "../../histogram";
import type { RolloutTable } from "../../rows";
import { ThroughputChart } from "./ThroughputChart";

interface DistributionsProps {
  table: RolloutTable;
  /** The rows of the current filter. */
  rows: Uint32Array;
}

/** Distributions of turns, tokens and seconds, and throughput, of the rollouts of the current filter. */
export function Distributions({ table, rows }: DistributionsProps) {
  const figures = useMemo(() => {
    const executed = rows.filter((row) => !Number.isNaN(table.number("number", row)));
    const isFailure = (index: number) => FAILURES.includes(table.statusOf(executed[index] as number));
    return {
      turns: histogram(table.values("turns", executed)),
      tokens: histogram(table.values("tokens", executed)),
      seconds: histogram(table.values("seconds", executed)),
      throughput: throughput(table.values("ended", executed), isFailure),
    };
  }, [table, rows]);
  return (
    <section class="panel distributions" aria-label="Distributions">
      <HistogramChart title="Turns" data={figures.turns} format={(value) => formatNumber(value)} />
      <HistogramChart title="Tokens" data={figures.tokens} format={formatCompact} />
      <HistogramChart title="Seconds" data={figures.seconds} format={formatDuration} />
      <ThroughputChart data={figures.throughput} />
    </section>
  );
}

interface HistogramChartProps {
  title: string;
  data: Histogram | null;
  format: (value: number) => string;
}

/** A small histogram with its median, 95th percentile and maximum. */
export function HistogramChart({ title, data, format }: HistogramChartProps) {
  if (!data || (data.largest === 0 && data.bins.length === 1)) {
    return (
      <div class="chart">
        <h3>{title}</h3>
        <p class="chart-empty">{data ? "All values are 0" : "No results"}</p>
      </div>
    );
  }
  const { bins, start, width } = data;
  const highest = Math.max(...bins);
  const end = start + bins.length * width;
  const summary = `median ${format(data.median)} · p95 ${format(data.p95)} · max ${format(data.largest)}`;
  const label = (bin: number) => `${binLabel(data, bin, format)}: ${formatNumber(bins[bin])}`;
  return (
    <div class="chart">
      <h3>
        {title} <span class="detail">{summary}</span>
      </h3>
      <svg
        class="histogram"
        role="img"
        aria-label={`${title}: ${summary}`}
        viewBox={`0 0 ${bins.length} 100`}
        preserveAspectRatio="none"
      >
        {Array.from(bins, (count, bin) => {
          const height = count === 0 ? 0 : Math.max(2, (98 * count) / highest);
          return (
            <g key={bin}>
              <title>{label(bin)}</title>
              <rect class="hit" x={bin} y={0} width={1} height={100} />
              <rect class="bar" x={bin + 0.06} y={100 - height} width={0.88} height={height} />
            </g>
          );
        })}
      </svg>
      <div class="chart-axis" aria-hidden="true">
        <span>{format(start)}</span>
        {bins.length % 2 === 0 && <span>{format(start + (end - start) / 2)}</span>}
        <span>
          {data.isOpen ? "≥ " : ""}
          {format(data.isOpen ? end - width : end)}
        </span>
      </div>
    </div>
  );
}

/** The values of a bin in words: `5`, `5 to 10`, `50 and more`. */
export function binLabel(data: Histogram, bin: number, format: (value: number) => string): string {
  const from = data.start + bin * data.width;
  if (data.isOpen && bin === data.bins.length - 1) return `${format(from)} and more`;
  return data.isWhole && data.width === 1 ? format(from) : `${format(from)} to ${format(from + data.width)}`;
}
