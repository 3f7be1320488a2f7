import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { ExecutionDetail, NewNote, StepNote } from "../api";
import { Layout } from "../components/Layout";
import { Message } from "../components/Message";
import { tableParams } from "../filters";
import { RolloutContext, type RolloutContextValue } from "../rollout/context";
import { frameOf, framesOf } from "../rollout/frames";
import { KeyHelp, useKeys } from "../rollout/keys";
import { type Neighbours, neighboursOf, type RolloutName } from "../rollout/neighbours";
import { Outline } from "../rollout/Outline";
import { RawDialog } from "../rollout/RawDialog";
import { ResultPanel } from "../rollout/ResultPanel";
import { Details, RolloutHead } from "../rollout/RolloutHead";
import { ScreenPanel } from "../rollout/ScreenPanel";
import { TurnView } from "../rollout/TurnView";
import {
  FILTERS,
  type Filter,
  filterCounts,
  filterTurns,
  groupTurns,
  matchesFilter,
  neighbour,
  parseFilters,
  turnOf,
} from "../rollout/turns";
import { ActivityStrip, Waterfall } from "../rollout/Waterfall";
import { href, navigate, setParams, useRoute } from "../router";
import { useRollouts } from "../rows";
import { send, settings, useData } from "../source";
import { oneLine } from "../text";
import "./RolloutPage.css";

interface RolloutPageProps {
  run: string;
  task: string;
  attempt: number;
}

/** One rollout: its conversation, screenshots, times and result. */
export function RolloutPage({ run, task, attempt }: RolloutPageProps) {
  const { params } = useRoute();
  const rollouts = useRollouts(run);
  const row = rollouts.table.find(task, attempt);
  const listed = row === undefined ? Number.NaN : rollouts.table.number("number", row);
  const number = readNumber(params.get("execution")) ?? (Number.isNaN(listed) ? null : listed);
  const { data, error } = useData<ExecutionDetail>(number === null ? null : ["runs", run, "executions", number]);
  const detail = data?.number === number && data?.run === run ? data : undefined;
  const near = useMemo(
    () => neighboursOf(rollouts.table, params, task, attempt),
    [rollouts.version, params.toString(), task, attempt],
  );
  const problem = error || rollouts.error;
  return (
    <Layout
      crumbs={[
        { label: "Runs", address: href([]) },
        { label: run, address: href(["run", run], tableParams(params)) },
        { label: `${oneLine(task, 60)}${attempt > 1 ? ` · attempt ${attempt}` : ""}` },
      ]}
    >
      {detail && number !== null ? (
        <Rollout key={`${run}/${number}`} detail={detail} near={near} />
      ) : problem ? (
        <Message kind="error">{problem}</Message>
      ) : number === null && rollouts.complete ? (
        <Message>
          {row === undefined ? "The run has no such rollout." : "This rollout has no result yet."}{" "}
          <a href={href(["run", run], tableParams(params))}>All rollouts of the run</a>
        </Message>
      ) : (
        <Message kind="loading">Loading…</Message>
      )}
    </Layout>
  );
}

function readNumber(text: string | null): number | null {
  return text !== null && /^\d{1,15}$/.test(text) ? Number(text) : null;
}

function Rollout({ detail, near }: { detail: ExecutionDetail; near: Neighbours }) {
  const { params } = useRoute();
  const step = readNumber(params.get("step"));
  const raw = readNumber(params.get("raw"));
  const isTiming = params.get("view") === "timing";
  const filters = parseFilters(params.get("show"));
  const turns = useMemo(() => groupTurns(detail.steps), [detail]);
  const visible = useMemo(() => filterTurns(turns, filters), [turns, params.get("show")]);
  const frames = useMemo(() => framesOf(detail.steps), [detail]);
  const position = frameOf(frames, step);
  const current = step === null ? undefined : turnOf(turns, step);
  const drawn = useGrowing(visible.length, visible.findIndex((turn) => turn.first === current?.first) + 1);
  const [help, setHelp] = useState(false);
  const context = useRolloutContext(detail);
  const { select } = context;

  const go = (name: RolloutName | undefined) => {
    if (name) navigate(rolloutLink(detail.run, name, params));
  };
  const moveFrame = (place: number) => {
    const frame = frames[place];
    if (frame) select(frame.step);
  };
  useKeys({
    turn: (direction) =>
      pick(
        neighbour(
          visible.map((turn) => turn.first),
          current?.first ?? null,
          direction,
        ),
        select,
      ),
    error: (direction) => {
      const errors = detail.steps.filter((one) => matchesFilter(one, "errors")).map((one) => one.index);
      pick(neighbour(errors, step, direction), select);
    },
    screenshot: (direction) => moveFrame(position + direction),
    task: (direction) => go(direction === 1 ? near.next : near.previous),
    failure: (direction) => go(direction === 1 ? near.nextFailure : near.previousFailure),
    wrong: (direction) => go(direction === 1 ? near.nextWrong : near.previousWrong),
    help: () => setHelp((before) => !before),
  });

  return (
    <RolloutContext.Provider value={context}>
      <div class={`rollout-page${frames.length > 0 ? " with-screen" : ""}`}>
        <RolloutHead
          detail={detail}
          kept={tableParams(params)}
          actions={<Navigation near={near} run={detail.run} params={params} onHelp={() => setHelp(true)} />}
        />
        <Toolbar detail={detail} filters={filters} isTiming={isTiming} />
        <ActivityStrip detail={detail} selected={step} />
        <div class="rollout-body">
          <Outline turns={visible} selected={current?.first ?? null} notes={context.notes} onSelect={select} />
          <Conversation step={step}>
            {isTiming ? (
              <Waterfall detail={detail} selected={step} onSelect={select} />
            ) : (
              <>
                {filters.length === 0 && <ResultPanel detail={detail} />}
                {visible.slice(0, drawn).map((turn) => (
                  <TurnView
                    key={turn.first}
                    turn={turn}
                    selected={turn.first === current?.first ? step : null}
                    reasoning={filters.includes("reasoning")}
                  />
                ))}
                {visible.length === 0 && (
                  <Message>{filters.length > 0 ? "No step matches the filter." : "No messages were recorded."}</Message>
                )}
              </>
            )}
          </Conversation>
          <aside class="rollout-side">
            <ScreenPanel
              run={detail.run}
              execution={detail.number}
              frames={frames}
              position={position}
              full={params.get("full") === "1"}
              onMove={moveFrame}
              onFull={(full) => setParams({ full: full ? 1 : null })}
            />
            <Details detail={detail} />
          </aside>
        </div>
        {raw !== null && (
          <RawDialog run={detail.run} execution={detail.number} step={raw} onClose={() => setParams({ raw: null })} />
        )}
        {help && <KeyHelp onClose={() => setHelp(false)} />}
      </div>
    </RolloutContext.Provider>
  );
}

function pick(step: number | undefined, select: (step: number) => void): void {
  if (step !== undefined) select(step);
}

function rolloutLink(run: string, { task, attempt }: RolloutName, params: URLSearchParams): string {
  const view = { show: params.get("show"), view: params.get("view") };
  return href(["run", run, "rollout", task, attempt], { ...tableParams(params), ...view });
}

/** Turns drawn at first, and in each of the following moments in which the browser has nothing else to do. */
const FIRST_TURNS = 20;
const MORE_TURNS = 30;

/** How many of `count` turns to draw: all of them after a while, those that are `needed` at once. */
function useGrowing(count: number, needed: number): number {
  const [drawn, setDrawn] = useState(FIRST_TURNS);
  const least = needed > 0 ? needed + FIRST_TURNS / 2 : 0;
  useEffect(() => {
    if (drawn >= count) return;
    const timer = setTimeout(() => setDrawn(Math.max(drawn, least) + MORE_TURNS), 30);
    return () => clearTimeout(timer);
  }, [drawn, count]);
  return Math.max(drawn, least);
}

/** What the parts of the page share; it changes only with the notes. */
function useRolloutContext(detail: ExecutionDetail): RolloutContextValue {
  const [notes, setNotes] = useState(detail.notes);
  const select = useCallback((step: number) => setParams({ step }), []);
  const showRaw = useCallback((step: number) => setParams({ raw: step, step }), []);
  const showImage = useCallback((step: number) => setParams({ step, full: 1 }), []);
  const writeNote = useCallback(
    async (step: number, text: string, number: number | null) => {
      const body: NewNote = { execution: detail.number, step, text, number };
      const saved = await send<StepNote>(["runs", detail.run, "notes"], body);
      setNotes((before) => {
        const others = before.filter((note) => note.number !== number);
        return text === "" ? others : [...others, saved].sort((a, b) => a.number - b.number);
      });
    },
    [detail],
  );
  return useMemo(
    () => ({
      run: detail.run,
      execution: detail.number,
      select,
      showRaw,
      showImage,
      notes,
      writeNote: settings.static ? undefined : writeNote,
    }),
    [detail, notes],
  );
}

/** The middle of the page; it scrolls to the selected step. */
function Conversation({ step, children }: { step: number | null; children: preact.ComponentChildren }) {
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (step === null) return;
    const show = () => scrollToStep(box.current, step);
    show();
    const frame = requestAnimationFrame(show); // turns above it may have got their real height
    return () => cancelAnimationFrame(frame);
  }, [step]);
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: it scrolls, also with the keyboard
    <div class="conversation" ref={box} tabIndex={0} role="log" aria-label="Conversation" aria-live="off">
      <div class="conversation-inner">{children}</div>
    </div>
  );
}

function scrollToStep(box: HTMLElement | null, step: number): void {
  const target = box?.querySelector(`#step-${step}`);
  if (!box || !target) return;
  const [outer, inner] = [box.getBoundingClientRect(), target.getBoundingClientRect()];
  const isVisible = inner.top >= outer.top && inner.top < outer.bottom - 100;
  if (!isVisible) target.scrollIntoView({ block: "start" });
}

interface NavigationProps {
  near: Neighbours;
  run: string;
  params: URLSearchParams;
  onHelp: () => void;
}

function Navigation({ near, run, params, onHelp }: NavigationProps) {
  const link = (name: RolloutName | undefined, label: string, sign: string) =>
    name ? (
      <a class="icon-button" href={rolloutLink(run, name, params)} aria-label={label} title={label}>
        {sign}
      </a>
    ) : (
      <span class="icon-button disabled" aria-hidden="true">
        {sign}
      </span>
    );
  return (
    <nav class="rollout-nav" aria-label="Other rollouts">
      {link(near.previous, "Previous rollout (p)", "‹")}
      <span class="soft number">{near.position > 0 ? `${near.position} of ${near.count}` : ""}</span>
      {link(near.next, "Next rollout (n)", "›")}
      {link(near.nextWrong, "Next wrong answer (w)", "Next wrong ✗ ›")}
      {link(near.nextFailure, "Next failed rollout (f)", "⚠ ›")}
      <button type="button" class="icon-button" onClick={onHelp} aria-label="Keys (?)" title="Keys (?)">
        ?
      </button>
    </nav>
  );
}

const FILTER_LABELS: Record<Filter, string> = {
  errors: "Errors",
  tools: "Tools",
  reasoning: "Reasoning",
  images: "Images",
};

function Toolbar({ detail, filters, isTiming }: { detail: ExecutionDetail; filters: Filter[]; isTiming: boolean }) {
  const counts = useMemo(() => filterCounts(detail.steps), [detail]);
  const toggle = (filter: Filter) => {
    const chosen = FILTERS.filter((one) => (one === filter ? !filters.includes(one) : filters.includes(one)));
    setParams({ show: chosen.join(",") || null });
  };
  return (
    <div class="rollout-toolbar">
      <fieldset class="segments">
        <legend class="visually-hidden">View</legend>
        <button type="button" aria-pressed={!isTiming} onClick={() => setParams({ view: null })}>
          Conversation
        </button>
        <button type="button" aria-pressed={isTiming} onClick={() => setParams({ view: "timing" })}>
          Timing
        </button>
      </fieldset>
      <fieldset class="step-filters">
        <legend>Show only</legend>
        {FILTERS.map((filter) => (
          <button
            type="button"
            key={filter}
            class="filter-button"
            aria-pressed={filters.includes(filter)}
            disabled={counts[filter] === 0 && !filters.includes(filter)}
            onClick={() => toggle(filter)}
          >
            {FILTER_LABELS[filter]} <span class="filter-count">{counts[filter]}</span>
          </button>
        ))}
      </fieldset>
    </div>
  );
}
