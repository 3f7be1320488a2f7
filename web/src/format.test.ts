import { describe, expect, it } from "vitest";
import { formatBytes, formatCompact, formatDuration, formatNumber } from "./format";

describe("formats", () => {
  it.each([
    [0.123, "0.12 s"],
    [4.56, "4.6 s"],
    [59.4, "59 s"],
    [185, "3:05"],
    [3723, "1:02:03"],
  ])("shows %d seconds as %s", (seconds, text) => expect(formatDuration(seconds)).toBe(text));

  it("shows unknown values as a dash", () => {
    expect([formatNumber(null), formatCompact(undefined), formatDuration(null)]).toEqual(["–", "–", "–"]);
  });

  it("shows millions with a capital letter", () => expect(formatCompact(1_234_567)).toBe("1.23M"));

  it("shows bytes in powers of 1,000", () => expect(formatBytes(1_234_000)).toBe("1.2 MB"));
});
