// A form made from a JSON schema: texts, numbers, booleans, enums, lists, objects, unions, dates.

import { useState } from "preact/hooks";
import type { Dict } from "./api";
import { clean } from "./ui";

interface Props {
  schema: Dict;
  root: Dict;
  value: any;
  label: string;
  isRequired?: boolean;
  onChange: (value: any) => void;
  depth?: number;
}

const DEPTH_MAX = 8;

export function resolved(schema: Dict, root: Dict): Dict {
  let found = schema;
  for (let step = 0; step < 20 && typeof found["$ref"] === "string"; step++) {
    const path = found["$ref"].replace(/^#\/?/, "").split("/").filter(Boolean);
    found = path.reduce((at: any, key: string) => at?.[key.replace(/~1/g, "/").replace(/~0/g, "~")], root) ?? {};
  }
  return found;
}

function variants(schema: Dict): Dict[] | null {
  const many = schema["anyOf"] ?? schema["oneOf"];
  if (Array.isArray(many)) return many;
  return Array.isArray(schema["type"]) ? schema["type"].map((type: string) => ({ ...schema, type })) : null;
}

function titleOf(schema: Dict, root: Dict): string {
  const inner = resolved(schema, root);
  const ref = typeof schema["$ref"] === "string" ? schema["$ref"].split("/").at(-1) : undefined;
  return String(inner["title"] ?? ref ?? (inner["const"] !== undefined ? JSON.stringify(inner["const"]) : inner["format"] ?? inner["type"] ?? "JSON"));
}

/** Return the value with which a form begins. */
export function initial(schema: Dict, root: Dict, depth = 0): any {
  const inner = resolved(schema, root);
  if (inner["default"] !== undefined) return inner["default"];
  if (inner["const"] !== undefined) return inner["const"];
  if (inner["enum"]?.length) return inner["enum"][0];
  const many = variants(inner);
  if (many?.length) return initial(many[0]!, root, depth + 1);
  switch (inner["type"]) {
    case "object": {
      const made: Dict = {};
      if (depth > DEPTH_MAX) return made;
      for (const name of inner["required"] ?? []) {
        const part = inner["properties"]?.[name];
        if (part) made[name] = initial(part, root, depth + 1);
      }
      return made;
    }
    case "array":
      return [];
    case "boolean":
      return false;
    case "number":
    case "integer":
      return 0;
    case "null":
      return null;
    default:
      return "";
  }
}

function fits(value: any, schema: Dict, root: Dict): boolean {
  const inner = resolved(schema, root);
  if (inner["const"] !== undefined) return JSON.stringify(inner["const"]) === JSON.stringify(value);
  if (inner["enum"]) return inner["enum"].some((each: any) => JSON.stringify(each) === JSON.stringify(value));
  switch (inner["type"]) {
    case "object":
      return typeof value === "object" && value !== null && !Array.isArray(value) && (inner["required"] ?? []).every((name: string) => name in value);
    case "array":
      return Array.isArray(value);
    case "null":
      return value === null;
    case "integer":
    case "number":
      return typeof value === "number";
    case undefined:
      return true;
    default:
      return typeof value === inner["type"];
  }
}

export function SchemaField({ schema, root, value, label, isRequired = true, onChange, depth = 0 }: Props) {
  const inner = resolved(schema, root);
  const note = typeof inner["description"] === "string" && depth > 0 ? clean(inner["description"], 300) : "";
  const named = (
    <span>
      {clean(label, 80)}
      {isRequired ? "" : " (optional)"}
    </span>
  );
  if (depth > DEPTH_MAX) return <p class="quiet">This part is too deep for a form; write it as JSON.</p>;
  const many = variants(inner);
  if (many) return <Union {...{ schema, root, value, label, isRequired, onChange, depth }} many={many} />;
  if (inner["enum"]) {
    const options: any[] = inner["enum"];
    return (
      <label class="field" title={note}>
        {named}
        <select value={String(options.findIndex((each) => JSON.stringify(each) === JSON.stringify(value)))} onChange={(event) => onChange(options[Number(event.currentTarget.value)])}>
          {options.map((each, at) => (
            <option value={String(at)} key={at}>
              {clean(typeof each === "string" ? each : JSON.stringify(each), 100)}
            </option>
          ))}
        </select>
      </label>
    );
  }
  switch (inner["type"]) {
    case "boolean":
      return (
        <label class="field check" title={note}>
          <input type="checkbox" checked={value === true} onChange={(event) => onChange(event.currentTarget.checked)} />
          {named}
        </label>
      );
    case "integer":
    case "number":
      return (
        <label class="field" title={note}>
          {named}
          <input
            type="number"
            step={inner["type"] === "integer" ? 1 : "any"}
            min={inner["minimum"]}
            max={inner["maximum"]}
            required={isRequired}
            value={value ?? ""}
            onInput={(event) => onChange(event.currentTarget.value === "" ? undefined : event.currentTarget.valueAsNumber)}
          />
        </label>
      );
    case "null":
      return <></>;
    case "array":
      return <ListField {...{ schema: inner, root, value, label, onChange, depth }} />;
    case "object":
      return <ObjectField {...{ schema: inner, root, value, label, onChange, depth }} />;
    case "string":
      return (
        <label class="field" title={note}>
          {named}
          {inner["format"] === "date" || inner["format"] === "date-time" || inner["format"] === "time" ? (
            <input
              type={inner["format"] === "date" ? "date" : inner["format"] === "time" ? "time" : "datetime-local"}
              required={isRequired}
              value={String(value ?? "").slice(0, 16)}
              onInput={(event) => {
                const text = event.currentTarget.value;
                onChange(inner["format"] === "date-time" && text ? new Date(text).toISOString() : text);
              }}
            />
          ) : (
            <textarea rows={String(value ?? "").includes("\n") || (inner["maxLength"] ?? 1) > 200 ? 4 : 1} value={value ?? ""} onInput={(event) => onChange(event.currentTarget.value)} />
          )}
        </label>
      );
    default:
      return <JsonField label={label} value={value} onChange={onChange} />;
  }
}

function Union(props: Props & { many: Dict[] }) {
  const { many, root, value, onChange, label, depth = 0 } = props;
  const found = many.findIndex((each) => fits(value, each, root));
  const at = found < 0 ? 0 : found;
  return (
    <fieldset>
      <legend>{clean(label, 80)}</legend>
      <label class="field">
        <span>Kind</span>
        <select value={String(at)} onChange={(event) => onChange(initial(many[Number(event.currentTarget.value)]!, root))}>
          {many.map((each, place) => (
            <option value={String(place)} key={place}>
              {resolved(each, root)["type"] === "null" ? "nothing" : clean(titleOf(each, root), 60)}
            </option>
          ))}
        </select>
      </label>
      <SchemaField schema={many[at]!} root={root} value={value} label="Value" onChange={onChange} depth={depth + 1} />
    </fieldset>
  );
}

function ListField({ schema, root, value, label, onChange, depth = 0 }: Props) {
  const items: any[] = Array.isArray(value) ? value : [];
  const of: Dict = schema["items"] ?? {};
  return (
    <fieldset>
      <legend>{clean(label, 80)}</legend>
      {items.map((each, at) => (
        <div class="item" key={at}>
          <SchemaField schema={of} root={root} value={each} label={`${at + 1}`} onChange={(now) => onChange(items.map((old, place) => (place === at ? now : old)))} depth={depth + 1} />
          <button type="button" aria-label={`Remove ${label} ${at + 1}`} onClick={() => onChange(items.filter((_, place) => place !== at))}>
            ×
          </button>
        </div>
      ))}
      <button type="button" onClick={() => onChange([...items, initial(of, root, depth)])}>
        Add
      </button>
    </fieldset>
  );
}

function ObjectField({ schema, root, value, label, onChange, depth = 0 }: Props) {
  const members: Dict = value && typeof value === "object" && !Array.isArray(value) ? value : {};
  const properties: [string, Dict][] = Object.entries(schema["properties"] ?? {});
  const required: string[] = schema["required"] ?? [];
  if (!properties.length) return <JsonField label={label} value={value} onChange={onChange} />;
  const fields = properties.map(([name, part]) => {
    const isRequired = required.includes(name);
    const shown = members[name] !== undefined ? members[name] : isRequired ? initial(part, root, depth) : resolved(part, root)["default"];
    if (!isRequired && members[name] === undefined && ["object", "array"].includes(resolved(part, root)["type"])) {
      return (
        <p key={name}>
          <button type="button" onClick={() => onChange({ ...members, [name]: initial(part, root, depth) })}>
            Add {clean(name, 60)}
          </button>
        </p>
      );
    }
    return (
      <SchemaField
        key={name}
        schema={part}
        root={root}
        value={shown}
        label={name}
        isRequired={isRequired}
        onChange={(now) => {
          const { [name]: _, ...others } = members;
          onChange(now === undefined ? others : { ...others, [name]: now });
        }}
        depth={depth + 1}
      />
    );
  });
  return depth === 0 ? (
    <>{fields}</>
  ) : (
    <fieldset>
      <legend>{clean(label, 80)}</legend>
      {fields}
    </fieldset>
  );
}

export function JsonField({ label, value, onChange }: { label: string; value: any; onChange: (value: any) => void }) {
  const [text, setText] = useState(() => JSON.stringify(value, null, 2) ?? "");
  const [isWrong, setWrong] = useState(false);
  return (
    <label class="field">
      <span>{clean(label, 80)} (JSON)</span>
      <textarea
        rows={6}
        spellcheck={false}
        aria-invalid={isWrong}
        value={text}
        onInput={(event) => {
          setText(event.currentTarget.value);
          try {
            onChange(JSON.parse(event.currentTarget.value));
            setWrong(false);
          } catch {
            setWrong(true);
          }
        }}
      />
      {isWrong && <span class="error">This is not valid JSON yet.</span>}
    </label>
  );
}
