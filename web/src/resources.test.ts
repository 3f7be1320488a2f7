import { expect, test } from "vitest";
import { orderedStates, rolloutOf, sortRows } from "./resources";

test("the holder of a machine names a worker and a rollout", () => {
  expect(rolloutOf("host:12 task-7")).toEqual({ worker: "host:12", task: "task-7", attempt: 1 });
  expect(rolloutOf("host:12 a task#1 with # signs#3")).toEqual({
    worker: "host:12",
    task: "a task#1 with # signs",
    attempt: 3,
  });
  expect(rolloutOf("papers/monday host:12")).toBeNull();
  expect(rolloutOf("")).toBeNull();
});

test("rows are sorted by number and by name, with unknown values last", () => {
  const rows = [
    { name: "m10", age: null },
    { name: "m2", age: 3 },
    { name: "m1", age: 20 },
  ];
  const names = (column: string, descending: boolean) => sortRows(rows, { column, descending }).map((row) => row.name);
  expect(names("name", false)).toEqual(["m1", "m2", "m10"]);
  expect(names("age", false)).toEqual(["m2", "m1", "m10"]);
  expect(names("age", true)).toEqual(["m1", "m2", "m10"]);
  expect(sortRows(rows, null)).toBe(rows);
});

test("states have a fixed order, and those that do not occur are left out", () => {
  const counts = { quarantined: 1, free: 2, leased: 3, booting: 0 };
  expect(orderedStates(counts).map((part) => part.state)).toEqual(["leased", "free", "quarantined"]);
});
