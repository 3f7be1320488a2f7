import type { ComponentChildren } from "preact";
import { isFiltered, NO_FILTER, OUTCOMES } from "../../filters";
import { counted, formatClock, formatNumber } from "../../format";
import { type Params, setParams } from "../../router";
import type { RolloutFilter } from "../../rows";

interface RolloutFiltersProps {
  /** The address of the first wrong answer of the list. */
  firstWrong: string | undefined;
  filter: RolloutFilter;
  /** The message of the chosen group of failures. */
  message: string;
  kinds: string[];
  /** How many replies were cut. */
  cut: number;
  counts: Map<string, number>;
  shown: number;
  total: number;
  isLoading: boolean;
}

/** The bar above the table of rollouts: search, filters, and what is filtered. */
export function RolloutFilters({
  firstWrong,
  filter,
  message,
  kinds,
  cut,
  counts,
  shown,
  total,
  isLoading,
}: RolloutFiltersProps) {
  const score = filter.score;
  const range = typeof score === "object" ? score : null;
  const setRange = (low: number, high: number) => setParams({ score: `${low}..${high}` });
  return (
    <div class="filters">
      <input
        type="search"
        placeholder="Search id, question, answer, error"
        aria-label="Search rollouts"
        value={filter.words}
        onInput={(event) => setParams({ q: event.currentTarget.value })}
      />
      <select
        aria-label="Status"
        title={filter.statuses.join(", ")}
        value={filter.statuses.join(",")}
        onChange={(event) => setParams({ status: event.currentTarget.value })}
      >
        <option value="">Any status</option>
        {filter.statuses.length > 1 && (
          <option value={filter.statuses.join(",")}>{formatNumber(filter.statuses.length)} statuses</option>
        )}
        {OUTCOMES.filter((status) => (counts.get(status) ?? 0) > 0 || filter.statuses.includes(status)).map(
          (status) => (
            <option key={status} value={status}>
              {status} ({formatNumber(counts.get(status) ?? 0)})
            </option>
          ),
        )}
      </select>
      <select
        aria-label="Score"
        value={range ? "range" : ((score as string | null) ?? "")}
        onChange={(event) =>
          setParams({ score: event.currentTarget.value === "range" ? "0..1" : event.currentTarget.value })
        }
      >
        <option value="">Any score</option>
        <option value="solved">solved</option>
        <option value="unsolved">not solved</option>
        <option value="range">score between…</option>
      </select>
      {range && (
        <span class="score-range">
          <ScoreInput label="Lowest score" value={range.low} onChange={(low) => setRange(low, range.high)} />
          –
          <ScoreInput label="Highest score" value={range.high} onChange={(high) => setRange(range.low, high)} />
        </span>
      )}
      {(cut > 0 || filter.cut) && (
        <label class="cut-filter" title="Only replies that were cut at the limit of tokens or of the context">
          <input
            type="checkbox"
            checked={filter.cut}
            onChange={(event) => setParams({ cut: event.currentTarget.checked ? "1" : null })}
          />
          cut ({formatNumber(cut)})
        </label>
      )}
      {(kinds.length > 0 || filter.kind) && (
        <select
          aria-label="Kind of failure"
          value={filter.kind}
          onChange={(event) => setParams({ kind: event.currentTarget.value, error: null })}
        >
          <option value="">Any kind of failure</option>
          {[...new Set([...kinds, ...(filter.kind ? [filter.kind] : [])])].map((kind) => (
            <option key={kind} value={kind}>
              {kind}
            </option>
          ))}
        </select>
      )}
      {filter.message && (
        <Chip remove={{ error: null }}>
          <span class="clipped" title={message}>
            {message}
          </span>
        </Chip>
      )}
      {filter.time && (
        <Chip remove={{ from: null, to: null }}>
          {formatClock(filter.time.from)} – {formatClock(filter.time.to)}
        </Chip>
      )}
      {isFiltered(filter) && (
        <button type="button" class="link-button" onClick={() => setParams(NO_FILTER)}>
          Clear filters
        </button>
      )}
      {firstWrong && (
        <a class="first-wrong" href={firstWrong} title="Open it; w there goes to the next one">
          First wrong answer ›
        </a>
      )}
      <span class="filtered-count" role="status">
        {isFiltered(filter) ? `${formatNumber(shown)} of ${counted(total, "rollout")}` : counted(total, "rollout")}
        {isLoading ? ", loading…" : ""}
      </span>
    </div>
  );
}

function ScoreInput({ label, value, onChange }: { label: string; value: number; onChange: (value: number) => void }) {
  return (
    <input
      type="number"
      step="0.05"
      aria-label={label}
      value={value}
      onChange={(event) => {
        if (event.currentTarget.value !== "") onChange(Number(event.currentTarget.value));
      }}
    />
  );
}

function Chip({ remove, children }: { remove: Params; children: ComponentChildren }) {
  return (
    <span class="chip">
      {children}
      <button type="button" aria-label="Remove this filter" onClick={() => setParams(remove)}>
        ×
      </button>
    </span>
  );
}
