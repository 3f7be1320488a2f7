import { expect, test } from "vitest";
import { findIn, parseQuery, QueryProblem } from "./scan";

test.each([
  ["refused connection", "Connection was REFUSED", true],
  ["refused connection", "Connection only", false],
  ['"was refused"', "connection was, refused", true],
  ['"refused was"', "connection was refused", false],
  ["time", "a timeout", true],
  ["out", "a timeout", false],
  ['"time"', "a timeout", false],
  ["ti", "a timeout", false],
  ["ti*", "a timeout", true],
  ["timeout -endpoint", "timeout of the machine", true],
  ["timeout -endpoint", "timeout of the endpoint", false],
  ["/etc/hosts", "see /etc/hosts.", true],
  ["Größe", "die GRÖSSE und die größe", true],
  ["a.b(c", "a b c", true],
])("%s in %j: %s", (query, text, found) => {
  expect(findIn(text, parseQuery(query)) !== null).toBe(found);
});

test("mistakes are explained", () => {
  expect(() => parseQuery('"open')).toThrow(QueryProblem);
  expect(() => parseQuery("-only")).toThrow(QueryProblem);
  expect(parseQuery("  ").wanted).toEqual([]);
});

test("a hit has what is around it", () => {
  const text = `${"x ".repeat(100)}needle${" y".repeat(100)}`;
  const found = findIn(text, parseQuery("needle"));
  expect(found?.match).toBe("needle");
  expect(found?.before.startsWith("…")).toBe(true);
  expect(found?.after.endsWith("…")).toBe(true);
  expect(found?.before.length).toBeLessThan(100);
});
