import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { LiveRun, RunDetail } from "../api";
import { Layout } from "../components/Layout";
import { Message } from "../components/Message";
import { StateLabel } from "../components/StateLabel";
import { Timeline } from "../components/Timeline";
import { readFilter, tableParams } from "../filters";
import { formatNumber } from "../format";
import { changedAddress, href, setParams, useRoute } from "../router";
import { type RolloutFilter, type Rollouts, type RolloutTable, useRollouts } from "../rows";
import { failureCount, LIVE_STATES, outcomeCounts, stateWarning } from "../runs";
import { useScrollPlace } from "../scrolling";
import { parseSort } from "../sorting";
import { settings, useData, useEvents } from "../source";
import { cleanText } from "../text";
import { Configuration } from "./run/Configuration";
import { Distributions } from "./run/Distributions";
import { ExportMenu } from "./run/ExportMenu";
import { FailureGroups } from "./run/FailureGroups";
import { RolloutFilters } from "./run/RolloutFilters";
import { RolloutList } from "./run/RolloutList";
import { RunControls, useControl } from "./run/RunControls";
import { RunHead } from "./run/RunHead";
import "./RunPage.css";

/** One run: what was evaluated, figures, failures and the table of its rollouts; timeline and distributions fold. */
export function RunPage({ run }: { run: string }) {
  const { params } = useRoute();
  const { data: detail, error, reload } = useData<RunDetail>(["runs", run]);
  const rollouts = useRollouts(run);
  const { live, isConnected } = useLive(run, detail, rollouts, reload);
  const control = useControl(run);
  const { table, version } = rollouts;

  const filter = readFilter(params);
  const selected = useMemo(() => table.select(filter), [table, version, JSON.stringify(filter)]);
  const sort = params.get("sort");
  const rows = useMemo(() => table.sort(selected, parseSort(sort)), [table, selected, sort]);
  const charted = useAfterPaint(selected);
  const counts = useMemo(
    () => (rollouts.complete ? table.outcomeCounts() : detailCounts(detail, live)),
    [table, version, rollouts.complete, detail],
  );
  const name = useMemo(() => executionNames(rollouts), [table]);

  const list = useRef<HTMLElement>(null);
  useScrollPlace(list, detail !== undefined && rollouts.complete);

  const crumbs = [{ label: "Runs", address: href([]) }, { label: run }];
  if (!detail) {
    return (
      <Layout crumbs={crumbs}>
        {error ? <Message kind="error">{error}</Message> : <Message kind="loading">Loading…</Message>}
      </Layout>
    );
  }
  const canControl = live !== null && !settings.static;
  const failed = failureCount(detail.row);
  const wrong = rows.find((row) => table.isWrong(row));
  const usesMachines = detail.machines !== null || Object.keys(live?.machine_states ?? {}).length > 0;
  const hasTimeline = isOpen(params, "timeline", usesMachines || filter.time !== null || params.has("view"));
  const hasCharts = isOpen(params, "charts", false);
  const isConfiguration = params.get("tab") === "configuration";
  return (
    <Layout crumbs={crumbs}>
      <div class="run-page">
        <div class="run-title">
          <h1>{run}</h1>
          <StateLabel state={live?.state ?? detail.row.state} colour={live ? undefined : stateWarning(detail.row)} />
          {!live && failed > 0 && <span class="run-failed">{formatNumber(failed)} failed</span>}
          {detail.row.origin && <span class="origin">{detail.row.origin}</span>}
          {live && !isConnected && <span class="connection">connection lost</span>}
          {live?.note && <span class="soft clipped">{live.note}</span>}
          <span class="spacer" />
          {canControl && <RunControls live={live} control={control} />}
          <nav class="run-links" aria-label="Pages of the run">
            <Fold name="timeline" isOpen={hasTimeline}>
              Timeline
            </Fold>
            <Fold name="charts" isOpen={hasCharts}>
              Distributions
            </Fold>
            <a href={href(["run", run, "search"])}>Search</a>
            {!settings.static && <a href={href(["run", run, "engine"])}>Engine</a>}
          </nav>
          <ExportMenu run={run} />
        </div>
        {!live && detail.stopped && <p class="run-stopped">Stopped early: {cleanText(detail.stopped)}</p>}
        {(error || rollouts.error) && <Message kind="error">{error || rollouts.error}</Message>}
        <RunHead detail={detail} live={live} counts={counts} filter={filter} />
        <div class={`run-grid${hasTimeline ? " with-timeline" : ""}`}>
          {hasTimeline && (
            <div class="timeline-place">
              <Timeline run={run} live={live !== null} name={name} />
            </div>
          )}
          {detail.failures.length > 0 && <FailureGroups run={run} detail={detail} filter={filter} />}
          {hasCharts && <Distributions table={table} rows={charted} />}
          <section class="panel rollouts" aria-label="Rollouts" ref={list}>
            <header>
              <nav class="tabs" aria-label="Content">
                <a href={changedAddress({ tab: null })} aria-current={isConfiguration ? undefined : "page"}>
                  Rollouts
                </a>
                <a href={changedAddress({ tab: "configuration" })} aria-current={isConfiguration ? "page" : undefined}>
                  Configuration
                </a>
              </nav>
              {!isConfiguration && (
                <RolloutFilters
                  firstWrong={wrong === undefined ? undefined : rolloutAddress(run, table, wrong, params)}
                  filter={filter}
                  message={chosenMessage(detail, filter)}
                  kinds={table.kinds()}
                  cut={detail.row.cut}
                  counts={counts}
                  shown={rows.length}
                  total={detail.row.total}
                  isLoading={!rollouts.complete}
                />
              )}
            </header>
            {isConfiguration ? (
              <Configuration config={detail.config} />
            ) : (
              <RolloutList
                run={run}
                table={table}
                rows={rows}
                version={version}
                sort={sort}
                attempts={detail.attempts}
                control={canControl ? control : null}
                isLoading={!rollouts.complete}
              />
            )}
          </section>
        </div>
      </div>
    </Layout>
  );
}

/** A part of the page that is folded: the address says whether it is open, if it differs from the default. */
function isOpen(params: URLSearchParams, name: string, byDefault: boolean): boolean {
  const chosen = params.get(name);
  return chosen === null ? byDefault : chosen === "1";
}

/** Opens and closes a part of the page. */
function Fold(props: { name: string; isOpen: boolean; children: ComponentChildren }) {
  return (
    <button
      type="button"
      class="fold"
      aria-expanded={props.isOpen}
      onClick={() => setParams({ [props.name]: props.isOpen ? "0" : "1" })}
    >
      {props.children}
    </button>
  );
}

function rolloutAddress(run: string, table: RolloutTable, row: number, params: URLSearchParams): string {
  return href(["run", run, "rollout", table.text("task", row), table.number("attempt", row)], tableParams(params));
}

/** The value, one frame later: the table answers first, then the charts. */
function useAfterPaint<T>(value: T): T {
  const [shown, setShown] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setShown(value), 30);
    return () => clearTimeout(timer);
  }, [value]);
  return shown;
}

const RELOAD_SECONDS = 2;
const IDLE_RELOAD_SECONDS = 10;

interface Live {
  /** The state of a live run, or null. */
  live: LiveRun | null;
  isConnected: boolean;
}

/** Follow a run. New results are loaded when its state says that there are some. */
function useLive(run: string, detail: RunDetail | undefined, rollouts: Rollouts, reload: () => void): Live {
  const [live, setLive] = useState<LiveRun | null>(null);
  const [hasEnded, setEnded] = useState(false);
  const counted = useRef("");
  const reloaded = useRef(0);
  // The stream of a run without a session waits for one. When a session has ended, the page asks for the next one.
  const isWaiting = hasEnded && !detail?.live;
  const isConnected = useEvents<LiveRun>(isWaiting ? null : ["runs", run, "events"], (event, status) => {
    if (event === "end") {
      setEnded(true);
      setLive(null);
      rollouts.setRunning([], 0);
      rollouts.update();
      reload();
    } else if (event === "status") {
      setLive(status);
      rollouts.setRunning(status.rollouts, status.at);
      const count = [status.state, status.done, status.failed, status.cancelled, status.retries].join();
      if (count !== counted.current && Date.now() - reloaded.current >= RELOAD_SECONDS * 1000) {
        counted.current = count;
        reloaded.current = Date.now();
        rollouts.update();
        reload();
      }
    }
  });
  useEffect(() => {
    if (!isWaiting || settings.static) return;
    const timer = setInterval(reload, IDLE_RELOAD_SECONDS * 1000);
    return () => clearInterval(timer);
  }, [isWaiting]);
  return { live: live && LIVE_STATES.includes(live.state) ? live : null, isConnected };
}

/** The message of an example of the chosen group of failures. */
function chosenMessage({ failures }: RunDetail, { kind, message }: RolloutFilter): string {
  const chosen = failures.find((group) => group.message === message && group.kind === kind);
  return chosen?.example_message ?? message;
}

/** Rollouts by outcome before all rows are loaded. */
function detailCounts(detail: RunDetail | undefined, live: LiveRun | null): Map<string, number> {
  const counts = detail ? outcomeCounts(detail.row) : new Map<string, number>();
  const ended = [...counts.values()].reduce((sum, count) => sum + count, 0);
  const running = live?.active ?? 0;
  counts.set("running", running);
  return counts.set("pending", Math.max(0, (detail?.row.total ?? 0) - ended - running));
}

/** Names of executions for the timeline. */
function executionNames({ table }: Rollouts) {
  return (execution: number) => {
    const row = table.rowOfExecution(execution);
    if (row === undefined) return undefined;
    return { task: table.text("task", row), attempt: table.number("attempt", row), status: table.statusOf(row) };
  };
}
