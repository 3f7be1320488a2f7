import type { FailureGroup, RunDetail } from "../../api";
import { FAILURES } from "../../filters";
import { counted, formatClock, formatNumber, formatTime } from "../../format";
import { changedAddress, href } from "../../router";
import type { RolloutFilter } from "../../rows";

interface FailureGroupsProps {
  run: string;
  detail: RunDetail;
  filter: RolloutFilter;
}

/** Failures by who caused them and message. A click on a message filters the table. */
export function FailureGroups({ run, detail, filter }: FailureGroupsProps) {
  const { failures } = detail;
  const total = failures.reduce((sum, group) => sum + group.count, 0);
  const final = failures.reduce((sum, group) => sum + group.final, 0);
  return (
    <section class="panel failures" aria-labelledby="failures-title">
      <header>
        <h2 id="failures-title">Failures</h2>
        <span class="soft">
          {formatNumber(total)} in {counted(failures.length, "group")}
          {total > final ? `, ${formatNumber(total - final)} retried` : ""}
        </span>
        <a class="all-failures" href={changedAddress({ status: FAILURES.join(","), kind: null, error: null })}>
          Show all
        </a>
      </header>
      <div class="failures-scroller">
        <table>
          <thead>
            <tr>
              <th scope="col" class="number">
                Count
              </th>
              <th scope="col">Caused by</th>
              <th scope="col">Message</th>
              <th scope="col" class="number">
                First, last
              </th>
              <th scope="col">
                <span class="visually-hidden">Example</span>
              </th>
            </tr>
          </thead>
          <tbody>
            {failures.map((group) => (
              <Group key={`${group.party}\n${group.kind}\n${group.message}`} run={run} group={group} filter={filter} />
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

function Group({ run, group, filter }: { run: string; group: FailureGroup; filter: RolloutFilter }) {
  const isChosen = filter.kind === group.kind && filter.message === group.message;
  const { example } = group;
  const retried = group.count - group.final;
  const address = changedAddress(
    isChosen ? { kind: null, error: null } : { kind: group.kind, error: group.message, status: null },
  );
  return (
    <tr class={isChosen ? "chosen" : ""}>
      <td class="number" title={retried > 0 ? `${group.final} final, ${retried} retried` : undefined}>
        {formatNumber(group.count)}
      </td>
      <td title={group.kind}>{group.party}</td>
      <td>
        <a
          class="group-message"
          href={address}
          aria-current={isChosen ? "true" : undefined}
          title={group.example_message}
        >
          {group.example_message || group.kind}
        </a>
      </td>
      <td class="number soft" title={`${formatTime(group.first)}\n${formatTime(group.last)}`}>
        {[...new Set([group.first, group.last].map(formatClock))].join(" – ")}
      </td>
      <td>
        <a
          href={href(["run", run, "rollout", example.task, example.attempt], {
            execution: example.number,
            kind: group.kind,
            error: group.message,
          })}
          aria-label={`Example: ${example.task}, attempt ${example.attempt}`}
        >
          Example
        </a>
      </td>
    </tr>
  );
}
