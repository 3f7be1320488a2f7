import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { SearchHit, SearchResults } from "../api";
import { Layout } from "../components/Layout";
import { Message } from "../components/Message";
import { StateLabel } from "../components/StateLabel";
import { counted, formatNumber, formatScore } from "../format";
import { href, setParams, useRoute } from "../router";
import { outcomeOf } from "../rows";
import { countKinds, groupHits, type HitGroup, isComplete, kindLabel } from "../search/results";
import { MOST_SCANNED, scanExport } from "../search/scan";
import { load, settings } from "../source";
import "./SearchPage.css";

const TYPING_MS = 250;
const RELOAD_MS = 1000;
const SHOWN_HITS = 4;
/** The server counts no more hits. */
const MOST_COUNTED = 1000;

/** Search in all text of a run. */
export function SearchPage({ run }: { run: string }) {
  const { params } = useRoute();
  const text = (params.get("q") ?? "").trim();
  const { results, error } = useSearch(run, text);
  return (
    <Layout
      crumbs={[{ label: "Runs", address: href([]) }, { label: run, address: href(["run", run]) }, { label: "Search" }]}
    >
      <div class="search">
        <SearchBox run={run} />
        {text === "" ? (
          <Syntax />
        ) : error !== "" ? (
          <Message kind="error">{error}</Message>
        ) : results === undefined ? (
          <Message kind="loading">Searching…</Message>
        ) : (
          <Results run={run} results={results} kind={params.get("kind")} />
        )}
      </div>
    </Layout>
  );
}

/** The words of the address; typing changes it after a moment. `/` moves the focus here. */
function SearchBox({ run }: { run: string }) {
  const { params } = useRoute();
  const asked = params.get("q") ?? "";
  const [typed, setTyped] = useState(asked);
  const box = useRef<HTMLInputElement>(null);
  const timer = useRef(0);
  useEffect(() => setTyped((before) => (before.trim() === asked ? before : asked)), [asked]);
  useEffect(() => {
    box.current?.focus();
    const pressed = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (event.key !== "/" || event.ctrlKey || event.metaKey || /^(input|textarea|select)$/i.test(target.tagName))
        return;
      event.preventDefault();
      box.current?.focus();
      box.current?.select();
    };
    window.addEventListener("keydown", pressed);
    return () => {
      window.removeEventListener("keydown", pressed);
      window.clearTimeout(timer.current);
    };
  }, []);
  const ask = (text: string) => {
    window.clearTimeout(timer.current);
    setParams({ q: text.trim(), kind: null });
  };
  return (
    <form
      class="search-form"
      onSubmit={(event) => {
        event.preventDefault();
        ask(typed);
      }}
    >
      <input
        ref={box}
        type="search"
        aria-label={`Search all text of ${run}`}
        placeholder="Search all text: messages, reasoning, tool calls and results, errors"
        value={typed}
        onInput={(event) => {
          const text = event.currentTarget.value;
          setTyped(text);
          window.clearTimeout(timer.current);
          timer.current = window.setTimeout(() => ask(text), TYPING_MS);
        }}
        onKeyDown={(event) => {
          if (event.key === "ArrowDown") moveFocus(event, 1);
        }}
      />
      <kbd title="Press / to search">/</kbd>
    </form>
  );
}

function Syntax() {
  const lines: [string, string][] = [
    ["connection refused", "both words occur in the same step, in any order"],
    ['"connection refused"', "the words follow each other"],
    ["timeout", "also longer words that begin so, such as timeouts; in quotes only the word itself"],
    ["timeout -endpoint", "steps with the first word and without the second"],
  ];
  return (
    <div class="panel search-syntax">
      <div class="body">
        <h2>How to search</h2>
        <dl>
          {lines.map(([query, meaning]) => (
            <div key={query}>
              <dt>
                <button type="button" class="link-button mono" onClick={() => setParams({ q: query })}>
                  {query}
                </button>
              </dt>
              <dd>{meaning}</dd>
            </div>
          ))}
        </dl>
        <p class="soft">
          Upper and lower case are the same. Words are letters and digits; other characters separate them, so{" "}
          <code>/etc/hosts</code> finds both words next to each other.
        </p>
      </div>
    </div>
  );
}

interface ResultsProps {
  run: string;
  results: SearchResults;
  kind: string | null;
}

function Results({ run, results, kind }: ResultsProps) {
  const kinds = useMemo(() => countKinds(results.hits), [results]);
  const groups = useMemo(
    () => groupHits(kind === null ? results.hits : results.hits.filter((hit) => hit.kind === kind)),
    [results, kind],
  );
  const count = groups.reduce((sum, group) => sum + group.hits.length, 0);
  if (results.problem !== "") return <Message kind="error">{results.problem}</Message>;
  const rowsOnly = settings.static && results.hits.every((hit) => hit.step < 0) && results.executions > MOST_SCANNED;
  return (
    <>
      {!isComplete(results) && <IndexProgress results={results} />}
      {rowsOnly && (
        <p class="soft">
          This export has {counted(results.executions, "rollout")}: questions, answers and errors are searched. Use{" "}
          <code>paragent view</code> to search all text.
        </p>
      )}
      <div class="search-summary">
        <strong role="status">
          {results.total === 0
            ? `Nothing found${isComplete(results) ? "" : " yet"}`
            : `${shownOf(count, results)} in ${counted(groups.length, "rollout")}`}
        </strong>
        {kinds.length > 1 && (
          <div class="search-kinds">
            <KindButton label="All" count={results.hits.length} pressed={kind === null} value={null} />
            {kinds.map(([name, count]) => (
              <KindButton key={name} label={kindLabel(name)} count={count} pressed={kind === name} value={name} />
            ))}
          </div>
        )}
      </div>
      {results.total === 0 && isComplete(results) && <Syntax />}
      <ol class="search-groups">
        {groups.map((group) => (
          <Group key={`${group.execution.number} ${group.execution.task}`} run={run} group={group} />
        ))}
      </ol>
    </>
  );
}

/** How many hits are shown, and of how many if not all are. */
function shownOf(count: number, { hits, total }: SearchResults): string {
  const atLeast = total >= MOST_COUNTED ? "at least " : "";
  if (total > hits.length) return `The first ${formatNumber(count)} of ${atLeast}${counted(total, "hit")},`;
  return atLeast !== "" ? `The first ${counted(count, "hit")},` : counted(count, "hit");
}

function KindButton(props: { label: string; count: number; pressed: boolean; value: string | null }) {
  return (
    <button
      type="button"
      class="button"
      aria-pressed={props.pressed}
      onClick={() => setParams({ kind: props.pressed ? null : props.value })}
    >
      {props.label} <span class="soft">{formatNumber(props.count)}</span>
    </button>
  );
}

function IndexProgress({ results }: { results: SearchResults }) {
  const verb = settings.static ? "Reading the transcripts" : "The index is being built";
  return (
    <div class="search-progress">
      <progress max={results.executions} value={results.indexed} aria-label={verb} />
      {verb}: {formatNumber(results.indexed)} of {counted(results.executions, "execution")}. More hits will follow.
    </div>
  );
}

function Group({ run, group }: { run: string; group: HitGroup }) {
  const [isOpen, setOpen] = useState(false);
  const { execution, hits } = group;
  const page = ["run", run, "rollout", execution.task, execution.attempt];
  const shown = isOpen ? hits : hits.slice(0, SHOWN_HITS);
  return (
    <li class="panel">
      <div class="search-head">
        <a href={href(page, execution.number ? { execution: execution.number } : {})}>{execution.task}</a>
        <span class="soft">attempt {execution.attempt}</span>
        {execution.status !== "" && <StateLabel state={outcomeOf(execution.status, execution.score)} />}
        {execution.score !== null && <span class="soft">score {formatScore(execution.score)}</span>}
        {!execution.final && <span class="soft">was retried</span>}
        <span class="soft search-count">{counted(hits.length, "hit")}</span>
      </div>
      {shown.map((hit, index) => (
        <Hit key={index} hit={hit} page={page} />
      ))}
      {shown.length < hits.length && (
        <button type="button" class="link-button search-more" onClick={() => setOpen(true)}>
          Show {counted(hits.length - shown.length, "more hit")}
        </button>
      )}
    </li>
  );
}

function Hit({ hit, page }: { hit: SearchHit; page: (string | number)[] }) {
  const step = hit.step >= 0 ? hit.step : null;
  return (
    <a
      class="search-hit"
      href={href(page, { execution: hit.execution.number || null, step })}
      onKeyDown={(event) => {
        if (event.key === "ArrowDown") moveFocus(event, 1);
        if (event.key === "ArrowUp") moveFocus(event, -1);
      }}
    >
      <span class="search-where">
        {step !== null && <span class="number">{step}</span>} {hit.kind}
      </span>
      <span class="search-snippet">
        {hit.before}
        <mark>{hit.match}</mark>
        {hit.after}
      </span>
    </a>
  );
}

/** Move the focus to the next or the previous hit; before the first one is the search box. */
function moveFocus(event: KeyboardEvent, step: number): void {
  const places = [...document.querySelectorAll<HTMLElement>(".search-form input, .search-hit")];
  places[places.indexOf(event.currentTarget as HTMLElement) + step]?.focus();
  event.preventDefault();
}

interface Search {
  results: SearchResults | undefined;
  error: string;
}

/** Search again while the index is being built. */
function useSearch(run: string, text: string): Search {
  const [state, setState] = useState<Search & { text: string }>({ text: "", results: undefined, error: "" });
  useEffect(() => {
    if (text === "") return;
    const controller = new AbortController();
    const report = (results: SearchResults) => {
      if (!controller.signal.aborted) setState({ text, results, error: "" });
    };
    const failed = (error: Error) => {
      if (!controller.signal.aborted) setState({ text, results: undefined, error: error.message });
    };
    let timer = 0;
    const ask = async (): Promise<void> => {
      const results = await load<SearchResults>(["runs", run, "search"], { q: text }, controller.signal);
      report(results);
      if (!isComplete(results) && results.problem === "") {
        timer = window.setTimeout(() => ask().catch(failed), RELOAD_MS);
      }
    };
    (settings.static ? scanExport(run, text, report, controller.signal) : ask()).catch(failed);
    return () => {
      controller.abort();
      window.clearTimeout(timer);
    };
  }, [run, text]);
  return state.text === text ? state : { results: undefined, error: "" };
}
