import { describe, expect, it } from "vitest";
import { filterParams, isFiltered, readFilter } from "./filters";
import { href, parseRoute } from "./router";
import { EVERYTHING, type RolloutFilter } from "./rows";
import { parseSort, sortText } from "./sorting";

function throughAddress(filter: RolloutFilter): RolloutFilter {
  return readFilter(parseRoute(href(["run", "a"], filterParams(filter))).params);
}

describe("filters in the address", () => {
  it.each<RolloutFilter>([
    EVERYTHING,
    {
      words: "a & b = ü <script>",
      statuses: ["failed", "timed out"],
      kind: "endpoint",
      message: "HTTP … from … # 100 %",
      score: { low: -0.5, high: 0.25 },
      cut: true,
      time: { from: 1763390000.5, to: 1763390012 },
    },
    { ...EVERYTHING, score: "solved" },
    { ...EVERYTHING, score: "unsolved" },
  ])("are returned as they were: %j", (filter) => expect(throughAddress(filter)).toEqual(filter));

  it.each(["status=gone", "score=high", "score=1..", "from=1", "from=9&to=1", "from=x&to=y"])(
    "that make no sense are ignored: %s",
    (query) => expect(readFilter(new URLSearchParams(query))).toEqual(EVERYTHING),
  );

  it("are told from none", () => {
    expect(isFiltered(EVERYTHING)).toBe(false);
    expect(isFiltered({ ...EVERYTHING, words: "x" })).toBe(true);
  });
});

describe("orders in the address", () => {
  it.each(["tokens", "-tokens"])("are returned as they were: %s", (text) =>
    expect(sortText(parseSort(text))).toBe(text),
  );

  it("may be missing", () => expect([parseSort(null), parseSort("-"), sortText(null)]).toEqual([null, null, null]));
});
