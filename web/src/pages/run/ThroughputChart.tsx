import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { formatClock, formatNumber, formatShortTime } from "../../format";
import type { Throughput } from "../../histogram";

/** As `--chart-height` of the page. */
const HEIGHT = 76;

/** Rollouts that ended in each minute, over time; failed ones in red. */
export function ThroughputChart({ data }: { data: Throughput | null }) {
  const place = useRef<HTMLDivElement>(null);
  const [hovered, setHovered] = useState<number | null>(null);
  const theme = useThemeRound();
  const size = useWidth(place);
  const plot = useRef<uPlot | null>(null);
  const hasData = data !== null;
  useEffect(() => {
    if (!place.current || !hasData || size === 0) return;
    plot.current = new uPlot(options(size, setHovered), [[], [], []], place.current);
    return () => {
      plot.current?.destroy();
      plot.current = null;
    };
  }, [theme, hasData, size === 0]);
  useEffect(() => plot.current?.setSize({ width: size, height: HEIGHT }), [size]);
  useEffect(() => {
    if (data) plot.current?.setData([data.times, data.ended, data.failed]);
  }, [data, theme, size === 0]);
  const peak = data ? Math.max(...data.ended) : 0;
  const text =
    data && hovered !== null && hovered < data.times.length
      ? `${formatClock(data.times[hovered])}: ${formatNumber(data.ended[hovered], 1)} a minute, ${formatNumber(data.failed[hovered], 1)} failed`
      : `peak ${formatNumber(peak, peak < 10 ? 1 : 0)} a minute`;
  return (
    <div class="chart">
      <h3>
        Throughput <span class="detail">{data ? text : ""}</span>
      </h3>
      {data === null && <p class="chart-empty">No results</p>}
      <div class="throughput" role="img" aria-label={`Throughput: ${text}`} ref={place} />
      {data && (
        <div class="chart-axis" aria-hidden="true">
          <span>{formatShortTime(data.times[0])}</span>
          <span>{formatShortTime(data.times.at(-1))}</span>
        </div>
      )}
    </div>
  );
}

function options(width: number, hover: (index: number | null) => void): uPlot.Options {
  const bars = uPlot.paths.bars?.({ size: [0.9, 12, 1], gap: 0 });
  const series = (token: string): uPlot.Series => ({
    fill: colour(token),
    width: 0,
    points: { show: false },
    ...(bars ? { paths: bars } : {}),
  });
  return {
    width,
    height: HEIGHT,
    padding: [2, 0, 0, 0],
    legend: { show: false },
    cursor: { y: false, points: { show: false }, drag: { x: false, y: false } },
    scales: { x: { time: true }, y: { range: (_plot, _low, high) => [0, Math.max(high, 1e-9)] } },
    axes: [{ show: false }, { show: false }],
    series: [{}, series("--accent"), series("--state-red")],
    hooks: { setCursor: [(plot) => hover(plot.cursor.idx ?? null)] },
  };
}

function colour(token: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(token).trim();
}

/** A number that changes with the theme, because a canvas has to be drawn again. */
function useThemeRound(): number {
  const [round, setRound] = useState(0);
  useEffect(() => {
    const changed = () => setRound((before) => before + 1);
    window.addEventListener("themechange", changed);
    return () => window.removeEventListener("themechange", changed);
  }, []);
  return round;
}

function useWidth(place: { current: HTMLElement | null }): number {
  const [width, setWidth] = useState(0);
  useEffect(() => {
    if (!place.current) return;
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry?.contentRect.width ?? 0)));
    observer.observe(place.current);
    return () => observer.disconnect();
  }, []);
  return width;
}
