/** Numbers, durations and times as text. */

export const UNKNOWN = "–";

export function formatNumber(value: number | null | undefined, digits = 0): string {
  if (value === null || value === undefined) return UNKNOWN;
  return value.toLocaleString("en-GB", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

/** 1234567 as `1.23M`. */
export function formatCompact(value: number | null | undefined): string {
  if (value === null || value === undefined) return UNKNOWN;
  return value.toLocaleString("en-US", { notation: "compact", maximumSignificantDigits: 3 });
}

export function formatScore(value: number | null | undefined): string {
  return formatNumber(value, 3);
}

/** The two ends of an interval. */
export function formatInterval([low, high]: [number, number]): string {
  return `${formatScore(low)} to ${formatScore(high)}`;
}

export function formatCost(value: number | null | undefined): string {
  if (value === null || value === undefined) return UNKNOWN;
  return `$${value < 1 ? value.toFixed(4) : value.toFixed(2)}`;
}

/** Seconds as `0.4 s`, `12 s`, `3:05` or `1:02:03`. */
export function formatDuration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined) return UNKNOWN;
  if (seconds < 10) return `${seconds.toFixed(seconds < 1 ? 2 : 1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const whole = Math.round(seconds);
  const parts = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const shown = parts[0] === 0 ? parts.slice(1) : parts;
  return shown.map((part, index) => (index === 0 ? String(part) : String(part).padStart(2, "0"))).join(":");
}

/** Seconds that pass while the reader looks at them: whole ones, `3 s`, `1:05`. */
export function formatAge(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined) return UNKNOWN;
  const whole = Math.floor(seconds);
  return whole < 60 ? `${whole} s` : formatDuration(whole);
}

/** Seconds since the epoch as a date and time of the reader's time zone. */
export function formatTime(epoch: number | null | undefined): string {
  if (!epoch) return UNKNOWN;
  return new Date(epoch * 1000).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });
}

/** Seconds since the epoch as `17 Nov, 15:04`, with the year if it is not this one. */
export function formatShortTime(epoch: number | null | undefined): string {
  if (!epoch) return UNKNOWN;
  const date = new Date(epoch * 1000);
  const year = date.getFullYear() === new Date().getFullYear() ? undefined : "numeric";
  const day = date.toLocaleDateString("en-GB", { day: "numeric", month: "short", year });
  return `${day}, ${date.toLocaleTimeString("en-GB", { timeStyle: "short" })}`;
}

/** Seconds since the epoch as the time of day, `15:04:05`. */
export function formatClock(epoch: number | null | undefined): string {
  if (!epoch) return UNKNOWN;
  return new Date(epoch * 1000).toLocaleTimeString("en-GB", { timeStyle: "medium" });
}

export function formatBytes(bytes: number): string {
  const units = ["B", "KB", "MB", "GB", "TB"];
  const power = bytes < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log10(bytes) / 3));
  return `${(bytes / 1000 ** power).toFixed(power === 0 ? 0 : 1)} ${units[power]}`;
}

export function formatPercent(fraction: number | null | undefined): string {
  return fraction === null || fraction === undefined ? UNKNOWN : `${Math.round(fraction * 100)} %`;
}

export function counted(count: number, noun: string, plural = `${noun}s`): string {
  return `${formatNumber(count)} ${count === 1 ? noun : plural}`;
}
