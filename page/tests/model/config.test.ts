import { describe, expect, it } from 'vitest';
import { asList, asText, fieldValue, find, lineOf, parse, template, withValue, written } from '../../src/model/config';

const text = `# a VM
name = 'web'   # its name
memory=64
maxmem = 0x80
disk = [ "files:a,,xvda,w",   # the first
         'files:b,,xvdb,r', ]
vif = ['']
odd line
extra = "a \\"b\\""
`;

describe("a configuration's text", () => {
  it('is read as xl reads it', () => {
    const config = parse(text);
    expect(find(config, 'name')).toBe('web');
    expect(find(config, 'maxmem')).toBe(128);
    expect(asList(find(config, 'disk'))).toEqual(['files:a,,xvda,w', 'files:b,,xvdb,r']);
    expect(asList(find(config, 'vif'))).toEqual(['']);
    expect(find(config, 'extra')).toBe('a "b"');
    expect(find(config, 'none')).toBeUndefined();
  });
  it('may have lines that cannot be read', () => {
    expect(parse(text).unread).toEqual([8]);
    expect(parse('a = [ "x"\nb = 1\n').unread).toEqual([1]);
    expect(find(parse('a = [ "x"\nb = 1\n'), 'b')).toBe(1);
    expect(parse('').entries).toEqual([]);
    expect(parse('= = = [').entries).toEqual([]);
  });
  it('keeps everything else when a value changes', () => {
    const changed = withValue(text, 'memory', 128);
    expect(changed).toBe(text.replace('memory=64', 'memory = 128'));
    expect(withValue(text, 'name', 'db')).toContain('name = "db"   # its name');
    expect(withValue(changed, 'memory', 64)).toContain('memory = 64\n');
  });
  it('gets a key that is new at its end', () => {
    expect(withValue('a = 1', 'b', 'x')).toBe('a = 1\nb = "x"\n');
    expect(withValue('', 'b', ['x', 'y'])).toBe('b = [\n    "x",\n    "y"\n]\n');
  });
  it('loses the lines of a key without a value', () => {
    expect(withValue('a = 1\nb = [ "x",\n "y" ]\nc = 2\n', 'b', null)).toBe('a = 1\nc = 2\n');
    expect(withValue('a = 1\nb = 2\nb = 3\n', 'b', null)).toBe('a = 1\n');
    expect(withValue('a = 1\n', 'b', null)).toBe('a = 1\n');
  });
  it('is the last that counts, if a key is there twice', () => {
    expect(find(parse('a = 1\na = 2\n'), 'a')).toBe(2);
    expect(withValue('a = 1\na = 2\n', 'a', 3)).toBe('a = 1\na = 3\n');
  });
  it('has any text that is written to it', () => {
    for (const value of ['plain', 'it\'s', 'say "x"', `both ' and "`, 'back\\slash', 'two\nlines', 'tab\t']) {
      expect(find(parse(`a = ${written(value)}`), 'a')).toBe(value);
    }
    expect(find(parse(`a = ${written(['x', ['y', 1]])}`), 'a')).toEqual(['x', ['y', 1]]);
  });
  it('is kept in step with fields', () => {
    expect(fieldValue('12', true)).toBe(12);
    expect(fieldValue(' ', true)).toBeNull();
    expect(fieldValue('12x', true)).toBe('12x');
    expect(asText(find(parse(template), 'memory'))).toBe('512');
  });
  it('is named by its faults', () => {
    expect(lineOf('page:12: name: bad')).toBe(12);
    expect(lineOf('not enough memory')).toBeNull();
  });
});
