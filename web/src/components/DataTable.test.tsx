import { cleanup, fireEvent, render, screen } from "@testing-library/preact";
import { afterEach, describe, expect, it, vi } from "vitest";
import { type DataColumn, DataTable, type Sort, shareByLength, shareOfIds } from "./DataTable";

const rows = Uint32Array.from({ length: 100_000 }, (_, index) => index);
const columns: DataColumn<number>[] = [
  { id: "name", title: "Name", width: "1fr", link: true, sortable: true, cell: (row) => `row ${row}` },
  { id: "size", title: "Size", width: "80px", numeric: true, cell: (row) => row * 2 },
];
const shared = { label: "Rows", columns, rowKey: (row: number) => row, rowHref: (row: number) => `#/row/${row}` };

afterEach(cleanup);

it("makes columns of ids as wide as the ids, up to a limit", () => {
  expect(shareOfIds(["a", "HumanEval/12"], 24, 70)).toBe("minmax(102px, 14fr)");
  expect(shareOfIds(["a"], 24, 70)).toBe("minmax(70px, 3fr)");
  expect(shareOfIds(["x".repeat(90)], 24, 70)).toBe("minmax(204px, 26fr)");
  expect(shareByLength(["x".repeat(90)], 24, 70)).toBe("minmax(70px, 26fr)");
});

describe("DataTable", () => {
  it("draws only the rows that are visible, and says how many there are", () => {
    render(<DataTable {...shared} rows={rows} />);
    const grid = screen.getByRole("grid", { name: "Rows" });
    expect(grid.getAttribute("aria-rowcount")).toBe("100001");
    const drawn = screen.getAllByRole("row").length;
    expect(drawn).toBeGreaterThan(10);
    expect(drawn).toBeLessThan(100);
    expect(screen.getByText("row 0").closest("a")?.getAttribute("href")).toBe("#/row/0");
    expect(screen.getByText("row 3").closest("[role=row]")?.getAttribute("aria-rowindex")).toBe("5");
  });

  it("moves the active row with the keyboard and opens it", () => {
    render(<DataTable {...shared} rows={rows.subarray(0, 20)} />);
    const grid = screen.getByRole("grid");
    const active = () => document.getElementById(grid.getAttribute("aria-activedescendant") ?? "")?.textContent;
    expect(active()).toContain("row 0");
    fireEvent.keyDown(grid, { key: "ArrowDown" });
    fireEvent.keyDown(grid, { key: "ArrowDown" });
    fireEvent.keyDown(grid, { key: "ArrowUp" });
    expect(active()).toContain("row 1");
    fireEvent.keyDown(grid, { key: "End" });
    fireEvent.keyDown(grid, { key: "ArrowDown" });
    expect(active()).toContain("row 19");
    fireEvent.keyDown(grid, { key: "Enter" });
    expect(window.location.hash).toBe("#/row/19");
    fireEvent.keyDown(grid, { key: "Home" });
    expect(active()).toContain("row 0");
  });

  it("asks for the next order of a column and tells the current one", () => {
    const asked: (Sort | null)[] = [];
    const table = (sort: Sort | null) => (
      <DataTable {...shared} rows={rows} sort={sort} onSort={(next) => asked.push(next)} />
    );
    const { rerender } = render(table(null));
    const press = () => fireEvent.click(screen.getByRole("button", { name: "Name" }));
    const head = () => screen.getByRole("columnheader", { name: "Name" }).getAttribute("aria-sort");
    expect(head()).toBe("none");
    press();
    rerender(table({ column: "name", descending: false }));
    expect(head()).toBe("ascending");
    press();
    rerender(table({ column: "name", descending: true }));
    expect(head()).toBe("descending");
    press();
    expect(asked).toEqual([{ column: "name", descending: false }, { column: "name", descending: true }, null]);
    expect(screen.queryByRole("button", { name: "Size" })).toBeNull();
  });

  it("selects rows with the mouse and with the space bar", () => {
    const select = vi.fn();
    render(<DataTable {...shared} rows={rows} selected={new Set([1])} onSelect={select} />);
    expect(screen.getByText("row 1").closest("[role=row]")?.getAttribute("aria-selected")).toBe("true");
    fireEvent.click(screen.getByLabelText("Select 2"));
    fireEvent.keyDown(screen.getByRole("grid"), { key: " " });
    fireEvent.click(screen.getByLabelText("Select 1"));
    expect(select.mock.calls).toEqual([
      [2, true],
      [2, true],
      [1, false],
    ]);
  });

  it("opens a row with a click on text that has a tooltip", () => {
    const cell = (row: number) => <span title="long">short {row}</span>;
    render(<DataTable {...shared} columns={[...columns, { id: "b", title: "B", width: "1fr", cell }]} rows={rows} />);
    fireEvent.click(screen.getByText("short 4"));
    expect(window.location.hash).toBe("#/row/4");
  });

  it("shows text of models as text", () => {
    const hostile = '<img src=x onerror="alert(1)"><script>alert(2)</script>';
    render(
      <DataTable
        {...shared}
        columns={[{ id: "a", title: "Answer", width: "1fr", cell: () => hostile }]}
        rows={rows.subarray(0, 1)}
      />,
    );
    expect(screen.getByText(hostile)).toBeTruthy();
    expect(document.querySelector("img, script")).toBeNull();
  });

  it("shows a message instead of rows", () => {
    render(<DataTable {...shared} rows={[]} empty={<p>Nothing here.</p>} />);
    expect(screen.getByText("Nothing here.")).toBeTruthy();
  });
});
