import { rolloutOf } from "../../resources";
import { href } from "../../router";
import { cleanText } from "../../text";

/** Who holds a machine; a link if it is a rollout of a known run. */
export function HolderLink({ holder, run }: { holder: string; run: string }) {
  const rollout = run ? rolloutOf(holder) : null;
  if (!rollout) return <span title={cleanText(holder)}>{cleanText(holder)}</span>;
  const name = cleanText(rollout.attempt === 1 ? rollout.task : `${rollout.task}#${rollout.attempt}`);
  return (
    <span title={cleanText(holder)}>
      <a href={href(["run", run, "rollout", rollout.task, rollout.attempt])}>{name}</a>{" "}
      <span class="soft">{rollout.worker}</span>
    </span>
  );
}
