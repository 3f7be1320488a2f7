import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { ControlAnswer, PoolMachine, PoolRow } from "../../api";
import { CopyButton } from "../../components/CopyButton";
import { StateLabel } from "../../components/StateLabel";
import { formatAge, formatNumber } from "../../format";
import { useElapsed, usePolled } from "../../polling";
import { loadImage, loadText, send } from "../../source";
import { cleanText } from "../../text";
import { HolderLink } from "./HolderLink";
import "./MachinePanel.css";

interface PanelProps {
  pool: PoolRow;
  machine: PoolMachine;
  receivedAt: number;
  /** The machine was changed. */
  onChange: () => void;
  onClose: () => void;
}

const POLL_SECONDS = 2;
const FINAL = ["quarantined", "stopped"];

/** One machine: its figures, what its screen shows now, and the end of its log. Escape closes it. */
export function MachinePanel({ pool, machine, receivedAt, onChange, onClose }: PanelProps) {
  const elapsed = useElapsed(receivedAt);
  useEffect(() => {
    const pressed = (event: KeyboardEvent) => {
      if (event.key === "Escape") onClose();
    };
    window.addEventListener("keydown", pressed);
    return () => window.removeEventListener("keydown", pressed);
  }, [onClose]);
  const hasScreen = useRef(false); // a machine that is being reset has no screen for some seconds
  hasScreen.current ||= machine.screenshot;
  const path = ["pools", pool.id, "machines", machine.name];
  const [isAsking, setAsking] = useState(false);
  const [answer, setAnswer] = useState<ControlAnswer | null>(null);
  const isFinal = FINAL.includes(machine.state);
  const retire = (isWanted: boolean) => {
    setAsking(false);
    if (!isWanted) return;
    send<ControlAnswer>([...path, "retire"], {})
      .then(setAnswer, (error: Error) => setAnswer({ ok: false, message: error.message }))
      .finally(onChange);
  };
  return (
    <aside class="panel machine-panel" aria-label={`Machine ${machine.name}`}>
      <header>
        <h2>{machine.name}</h2>
        <StateLabel state={machine.state} />
        <span class="soft">for {formatAge(machine.since + elapsed)}</span>
        <span class="spacer" />
        {!isFinal && !isAsking && (
          <button type="button" class="button" onClick={() => setAsking(true)}>
            Retire…
          </button>
        )}
        <button type="button" class="icon-button" aria-label="Close" title="Close (Escape)" onClick={onClose}>
          ×
        </button>
      </header>
      <div class="body">
        <dl class="facts">
          <Fact label="Holder">
            {machine.holder ? <HolderLink holder={machine.holder} run={pool.run} /> : "none"}
            {machine.lease_age !== null && <span class="soft"> for {formatAge(machine.lease_age + elapsed)}</span>}
          </Fact>
          <Fact label="Leases">{formatNumber(machine.leases)}</Fact>
          <Fact label="Resets">{formatNumber(machine.resets)}</Fact>
          <Fact label="Failures">{formatNumber(machine.failures)}</Fact>
        </dl>
        {machine.detail && <p class="detail">{cleanText(machine.detail)}</p>}
        {!isFinal && isAsking && <Confirm machine={machine} onAnswer={retire} />}
        {answer && (
          <p class={`answer ${answer.ok ? "soft" : "problem"}`} role="status">
            {answer.message}
          </p>
        )}
        {hasScreen.current && <Screen path={path} machine={machine} />}
        {machine.log && <Log path={path} />}
      </div>
    </aside>
  );
}

function Fact({ label, children }: { label: string; children: preact.ComponentChildren }) {
  return (
    <div>
      <dt>{label}</dt>
      <dd>{children}</dd>
    </div>
  );
}

function Confirm({ machine, onAnswer }: { machine: PoolMachine; onAnswer: (isWanted: boolean) => void }) {
  const when = machine.state === "leased" ? "when its lease ends" : "now";
  return (
    <div class="confirm">
      <span>
        Replace {machine.name} by a new machine {when}?
      </span>
      <button type="button" class="button danger" onClick={() => onAnswer(true)}>
        Retire {machine.name}
      </button>
      <button type="button" class="button" onClick={() => onAnswer(false)}>
        Keep it
      </button>
    </div>
  );
}

/** The screen, loaded again while it is shown. The last image stays when the machine does not answer. */
function Screen({ path, machine }: { path: string[]; machine: PoolMachine }) {
  const { data, error } = usePolled(
    machine.screenshot ? `${path.join("/")}/screenshot` : null,
    POLL_SECONDS,
    (signal) => loadImage([...path, "screenshot"], signal),
  );
  const source = useObjectUrl(data);
  return (
    <section aria-label="Screen">
      <h3>
        Screen{" "}
        {machine.screenshot ? (
          <LiveNote error={error} />
        ) : (
          <span class="soft live-note">no image while it is {machine.state}</span>
        )}
      </h3>
      {source ? (
        <img class={`screen ${machine.screenshot ? "" : "old"}`} src={source} alt={`Screen of ${machine.name}`} />
      ) : (
        <div class="screen empty">{error ? "" : "Taking a screenshot…"}</div>
      )}
    </section>
  );
}

/** The address of the newest image. Without a new one, the last one stays. */
function useObjectUrl(image: Blob | undefined): string {
  const [source, setSource] = useState("");
  useEffect(() => {
    if (image) setSource(URL.createObjectURL(image));
  }, [image]);
  useEffect(() => () => URL.revokeObjectURL(source), [source]);
  return source;
}

/** The end of the log. It follows new lines unless the reader has scrolled up. */
function Log({ path }: { path: string[] }) {
  const { data, error } = usePolled(`${path.join("/")}/log`, POLL_SECONDS, (signal) =>
    loadText([...path, "log"], signal),
  );
  const box = useRef<HTMLPreElement>(null);
  const follows = useRef(true);
  const text = data === undefined ? undefined : cleanText(data);
  useLayoutEffect(() => {
    if (box.current && follows.current) box.current.scrollTop = box.current.scrollHeight;
  }, [text]);
  const scrolled = () => {
    const { scrollTop, scrollHeight, clientHeight } = box.current ?? { scrollTop: 0, scrollHeight: 0, clientHeight: 0 };
    follows.current = scrollHeight - scrollTop - clientHeight < 20;
  };
  return (
    <section aria-label="Log">
      <h3>
        Log <LiveNote error={error} />
        {text && <CopyButton text={text} />}
      </h3>
      {text === "" && <p class="soft">The log is empty.</p>}
      {text && (
        // biome-ignore lint/a11y/noNoninteractiveTabindex: it scrolls, also with the keyboard
        <pre ref={box} class="log" tabIndex={0} onScroll={scrolled}>
          {text}
        </pre>
      )}
    </section>
  );
}

function LiveNote({ error }: { error: string }) {
  return error ? (
    <span class="problem live-note">{error}</span>
  ) : (
    <span class="soft live-note">every {POLL_SECONDS} s</span>
  );
}
