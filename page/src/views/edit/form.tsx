import { For, Index, createMemo } from 'solid-js';
import { asList, asText, fieldValue, find, parse, withValue, type Value } from '../../model/config';

interface Field {
  key: string;
  /** Another key with the same meaning. */
  also?: string;
  label: string;
  isNumber?: boolean;
  hint?: string;
}

const sizes: readonly Field[] = [
  { key: 'vcpus', label: 'vCPUs', isNumber: true },
  { key: 'maxvcpus', label: 'vCPUs at most', isNumber: true },
  { key: 'memory', label: 'Memory, MiB', isNumber: true },
  { key: 'maxmem', label: 'Memory at most, MiB', isNumber: true },
];

const boot: readonly Field[] = [
  { key: 'kernel', label: 'Kernel', hint: 'a file of the host' },
  { key: 'ramdisk', label: 'Ramdisk', hint: 'a file of the host' },
  { key: 'bootloader', label: 'Bootloader', hint: 'such as pygrub, in place of a kernel' },
  { key: 'cmdline', also: 'extra', label: 'Command line' },
];

const types = ['pvh', 'pv', 'hvm'];

/** The common keys of a configuration, as fields. The text is what counts. */
export function Form(props: { text: string; onText: (text: string) => void; isNameFixed: boolean }) {
  const config = createMemo(() => parse(props.text));
  const set = (key: string, value: Value | null): void => props.onText(withValue(props.text, key, value));
  const one = (field: Field) => {
    const key = () => (field.also !== undefined && find(config(), field.also) !== undefined ? field.also : field.key);
    return (
      <label class="field">
        <span>{field.label}</span>
        <input
          inputmode={field.isNumber ? 'numeric' : 'text'}
          value={asText(find(config(), key()))}
          placeholder={field.hint ?? ''}
          spellcheck={false}
          autocomplete="off"
          onInput={(event) => set(key(), fieldValue(event.currentTarget.value, field.isNumber ?? false))}
        />
      </label>
    );
  };
  return (
    <div class="form">
      <fieldset>
        <legend>VM</legend>
        <label class="field wide">
          <span>Name</span>
          <input
            value={asText(find(config(), 'name'))}
            readOnly={props.isNameFixed}
            spellcheck={false}
            autocomplete="off"
            onInput={(event) => set('name', event.currentTarget.value)}
          />
        </label>
        <label class="field wide">
          <span>Type</span>
          <select value={asText(find(config(), 'type')) || 'pv'} onChange={(event) => set('type', event.currentTarget.value)}>
            <For each={types}>{(type) => <option value={type}>{type}</option>}</For>
          </select>
        </label>
        <For each={sizes}>{one}</For>
      </fieldset>
      <fieldset class="single">
        <legend>Boot</legend>
        <For each={boot}>{one}</For>
      </fieldset>
      <List
        title="Disks"
        label="Disk"
        example="SR:VDI,,xvda,w"
        items={asList(find(config(), 'disk'))}
        onItems={(items) => set('disk', items.length === 0 ? null : items)}
      />
      <List
        title="Interfaces"
        label="Interface"
        example="bridge=xenbr0"
        items={asList(find(config(), 'vif'))}
        onItems={(items) => set('vif', items.length === 0 ? null : items)}
      />
    </div>
  );
}

function List(props: { title: string; label: string; example: string; items: string[]; onItems: (items: string[]) => void }) {
  return (
    <fieldset class="single">
      <legend>{props.title}</legend>
      <Index each={props.items}>
        {(item, index) => (
          <div class="item">
            <input
              aria-label={`${props.label} ${index + 1}`}
              value={item()}
              placeholder={props.example}
              spellcheck={false}
              autocomplete="off"
              onInput={(event) => {
                const text = event.currentTarget.value;
                props.onItems(props.items.map((it, at) => (at === index ? text : it)));
              }}
            />
            <button
              type="button"
              class="button small"
              aria-label={`Remove ${props.label.toLowerCase()} ${index + 1}`}
              onClick={() => props.onItems(props.items.filter((_, at) => at !== index))}
            >
              Remove
            </button>
          </div>
        )}
      </Index>
      <button type="button" class="button small add" onClick={() => props.onItems([...props.items, props.example])}>
        Add {props.label === 'Interface' ? 'an' : 'a'} {props.label.toLowerCase()}
      </button>
    </fieldset>
  );
}
