import type { ReplyTokens } from "../api";
import { counted, formatNumber } from "../format";

/** Tokens that are elements of the page; the copy button has all of them. */
const MOST_SHOWN = 5000;

/** The sampled tokens of a reply in order: their ids, on a colour that says how probable each was. */
export function TokenStrip({ tokens }: { tokens: ReplyTokens }) {
  const { ids, logprobs } = tokens;
  const facts = [
    counted(ids.length, "token"),
    `after ${counted(tokens.prompt, "token")} of the prompt`,
    tokens.version === null ? "" : `policy version ${tokens.version}`,
    logprobs === null ? "without log probabilities" : "",
  ].filter(Boolean);
  return (
    <div class="token-strip">
      <p class="soft">{facts.join(" · ")}</p>
      {logprobs && (
        <p class="token-scale soft" aria-hidden="true">
          improbable <span class="token-gradient" /> certain
        </p>
      )}
      <ol class="tokens" aria-label="Sampled tokens">
        {ids.slice(0, MOST_SHOWN).map((id, index) => {
          const logprob = logprobs?.[index];
          return (
            <li
              key={index}
              title={tokenTitle(tokens.prompt + index, logprob)}
              style={logprob === undefined ? undefined : { "--share": `${Math.round(probability(logprob) * 100)}%` }}
            >
              {id}
            </li>
          );
        })}
      </ol>
      {ids.length > MOST_SHOWN && <p class="soft">{formatNumber(ids.length - MOST_SHOWN)} more; copy them as JSON.</p>}
    </div>
  );
}

/** A log probability as a probability from 0 to 1. */
export function probability(logprob: number): number {
  return Math.min(1, Math.max(0, Math.exp(logprob)));
}

function tokenTitle(position: number, logprob: number | undefined): string {
  if (logprob === undefined) return `Position ${position}`;
  return `Position ${position}, probability ${probability(logprob).toPrecision(3)}, log probability ${logprob.toFixed(4)}`;
}
