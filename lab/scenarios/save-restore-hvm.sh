# lab-addition: hvm
# HVM guests are saved and restored with their device model's state, by xy and by xl: a boot sector that goes on counting
# on its emulated serial port. It has no PV drivers, so Xen stops it by itself.
# For instance: lab run --store c save-restore-hvm
. /lab/lib.sh
modprobe tun

# It counts on the first serial port: a line "A", "B", ... "Z", "A" for each turn of a long loop.
# mov al,'A'-1; next: inc al; cmp al,'Z'+1; jb say; mov al,'A'; say: mov dx,0x3f8; out dx,al; push ax; mov al,10; out dx,al;
# pop ax; mov cx,60; outer: push cx; mov cx,0xffff; inner: loop inner; pop cx; loop outer; jmp next
boot_code='\260\100\376\300\074\133\162\002\260\101\272\370\003\356\120\260\012\356\130\271\074\000\121\271\377\377\342\376\131\342\367\353\341'

models() { pidof xen-qemu-system-i386 qemu-system-i386; }
same() { same_state /results/state.before && [ -z "$(models)" ]; }
# counts_on NAME: more lines come, and each letter follows the one before: the registers went along.
counts_on() {
    lab_lines=$(wc -l <"/tmp/$1.serial")
    wait_for "[ \$(wc -l </tmp/$1.serial) -gt $((lab_lines + 3)) ]" 180 || return 1
    # QEMU begins the file anew when it is started.
    tr -d '\r' <"/tmp/$1.serial" | awk '
        length($0) != 1 { next }
        { code = index("ABCDEFGHIJKLMNOPQRSTUVWXYZ", $0) }
        seen && code != last % 26 + 1 { print "after " last " comes " code; wrong = 1 }
        { last = code; seen = 1 }
        END { exit wrong || !seen }'
}

start_xylemd
host_state >/results/state.before

echo "== a guest without PV drivers"
hvm_cfg one "vif = ['bridge=xenbr0,type=ioemu']"
check "create" xy create -q /tmp/one.cfg || exit
check "it counts" wait_for '[ $(wc -l </tmp/one.serial) -gt 3 ]' 240 || { cat /var/log/xen/qemu-dm-one.log; exit 1; }
check "its monitor answers xl" eval 'xl qemu-monitor-command one "info version" || true'
for round in 1 2; do
    start=$(now)
    check "save ($round)" xy save one /tmp/one.saved || exit
    echo "saved after $(seconds_since "$start") s, $(stat -c %s /tmp/one.saved) bytes"
    check "nothing is left but the file" same
    start=$(now)
    check "restore ($round)" xy restore /tmp/one.saved || { cat /var/log/xen/qemu-dm-one.log; exit 1; }
    echo "restored after $(seconds_since "$start") s"
    check "it counts on" counts_on one
done
check "save -c" xy save -c one /tmp/one.copy
check "it counts on where it was" counts_on one
check "a damaged file" eval 'head -c 100000 /tmp/one.copy >/tmp/one.cut; ! xy restore /tmp/one.cut'
check "save as xl does" xy save --format xl one /tmp/one.xl
check "nothing is left but the file" same
check "xl restores it" xl restore /tmp/one.xl || { tail -5 /var/log/xen/*one*; exit 1; }
check "it counts on" counts_on one
check "xl saves it" xl save one /tmp/one.xl2
check "restore of xl's file" xy restore /tmp/one.xl2 || { cat /var/log/xen/qemu-dm-one.log; exit 1; }
check "it counts on" counts_on one
check "destroy" xy destroy one
check "nothing is left" same
for file in one.xl one.xl2; do
    cp "/tmp/$file" "/results/$file" && check "the file of $file is kept for verify-stream-v2" test -s "/results/$file"
done

echo "== the daemon is killed while it saves"
hvm_cfg two
check "create" xy create -q /tmp/two.cfg
check "it counts" wait_for '[ $(wc -l </tmp/two.serial) -gt 3 ]' 240
for ms in 100 400 900; do
    (xy save two /tmp/two.saved >/dev/null 2>&1 &)
    sleep "0.$ms"
    kill_xylemd
    start_xylemd
    if [ -e /tmp/two.saved ]; then
        wait_for '! xl domid two 2>/dev/null' 60
        check "it is in its file after $ms ms" xy restore /tmp/two.saved
        rm -f /tmp/two.saved
    fi
    check "it counts on after a kill at $ms ms" counts_on two
done
check "destroy" xy destroy two
check "nothing is left" same
