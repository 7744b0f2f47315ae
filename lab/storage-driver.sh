#!/bin/sh
# A driver out of process, as docs/storage.md describes it: files in the folder that the SR's setting `folder` names,
# under loop devices. While /tmp/driver.hang exists it does not answer.

word() { echo "$line" | sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p"; }
number() { echo "$line" | sed -n "s/.*\"$1\":\([0-9]*\).*/\1/p"; }
ok() { echo "{\"ok\":${1:-null}}"; }
refuse() { echo "{\"error\":\"$*\"}"; }
# The last line of what a command says on standard error, if it fails, is the error.
try() { if "$@" 2>/tmp/driver.err >/dev/null; then ok; else refuse "$(tail -n 1 /tmp/driver.err)"; fi; }
loop_of() { /usr/sbin/losetup -n -O NAME -j "$1"; }

copy() {
    case $line in *'"written":true'*) refuse "is written to; stop its VM"; return ;; esac
    if cp "$folder/$vdi.img" "$folder/.part-$to" 2>/tmp/driver.err; then
        [ -z "$1" ] || echo "$vdi" >"$folder/$to.snapshot-of"
        try mv "$folder/.part-$to" "$folder/$to.img"
    else
        rm -f "$folder/.part-$to"
        refuse "$(tail -n 1 /tmp/driver.err)"
    fi
}

scan() {
    rm -f "$folder"/.part-*
    list=
    for file in "$folder"/*.img; do
        [ -f "$file" ] || continue
        base=${file%.img}
        origin=
        [ ! -f "$base.snapshot-of" ] || origin=",\"snapshot_of\":\"$(cat "$base.snapshot-of")\""
        list="$list${list:+,}{\"name\":\"${base##*/}\",\"bytes\":$(stat -c %s "$file")$origin}"
    done
    ok "[$list]"
}

activate() {
    device=$(loop_of "$file")
    [ -n "$device" ] || device=$(/usr/sbin/losetup -f --show "$file" 2>/tmp/driver.err)
    if [ -n "$device" ]; then ok "\"$device\""; else refuse "$(tail -n 1 /tmp/driver.err)"; fi
}

deactivate() {
    for device in $(loop_of "$file"); do /usr/sbin/losetup -d "$device"; done
    # A process that has it open closes it a moment later.
    tries=100
    while [ -n "$(loop_of "$file")" ]; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || { refuse "its device is still open"; return; }
        sleep 0.1
    done
    ok
}

grow() {
    truncate -s "$(number bytes)" "$file"
    device=$(loop_of "$file")
    if [ -n "$device" ]; then try /usr/sbin/losetup -c "$device"; else ok; fi
}

while read -r line; do
    while [ -e /tmp/driver.hang ]; do sleep 1; done
    vdi=$(word vdi) to=$(word to) folder=$(word folder)
    file=$folder/$vdi.img
    case $(word call) in
        create) try mkdir -p "$folder" ;;
        connect) try ls -d "$folder" ;;
        destroy) try rmdir "$folder" ;;
        space) ok "$(df -k "$folder" | awk 'NR == 2 { printf "{\"bytes\":%d,\"free_bytes\":%d}", $2 * 1024, $4 * 1024 }')" ;;
        scan) scan ;;
        create-vdi) try truncate -s "$(number bytes)" "$file" ;;
        grow-vdi) grow ;;
        destroy-vdi) try rm -f "$file" "$folder/$vdi.snapshot-of" ;;
        snapshot-vdi) copy snapshot ;;
        clone-vdi) copy ;;
        attach)
            if [ "$(word access)" = w ] && [ -f "$folder/$vdi.snapshot-of" ]; then
                refuse "is a snapshot and cannot be written to; clone it"
            else
                try ls "$file"
            fi
            ;;
        activate) activate ;;
        deactivate) deactivate ;;
        disconnect | detach) ok ;;
        *) refuse "no such call" ;;
    esac
done
