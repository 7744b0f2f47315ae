# lab-addition: hvm
# Another release of xylemd takes over running VMs, and this one takes them over from it; no guest ends.
#
#   cargo xtask lab run --with OLD/xylemd:/root/other/xylemd --with OLD/xy:/root/other/xy downgrade
. /lab/lib.sh
modprobe tun
other=/root/other
chmod +x "$other/xylemd" "$other/xy"
[ -x "$other/xylemd" ] && [ -x "$other/xy" ] || fail "no other release: --with FILE:$other/xylemd --with FILE:$other/xy"
for disk in a b c d; do truncate -s 4M /disk-$disk.raw; done
truncate -s 4M /root/disk.img

# switch TO: the daemon is replaced by this release's ("ours") or the other's.
switch() {
    kill "$xylemd_pid"
    wait "$xylemd_pid" 2>/dev/null
    case $1 in
    ours) PATH=$ours_path ;;
    other) PATH=$other:$ours_path ;;
    esac
    echo "== $1: $(xylemd --version)" | tee -a /results/xylemd.log
    start_xylemd
}
ours_path=$PATH

# The domains that run now, by name and number.
domains() { xl list | awk 'NR > 1 && $1 != "Domain-0" { print $1, $2, ($5 ~ /s|c|d/ ? "ended" : "lives") }' | sort; }
# unchanged WHEN: the same domains run as before, and each daemon knows them as running VMs.
unchanged() {
    check "$1: the same domains run" eval 'domains | diff /tmp/domains.before -'
    check "$1: each is a running VM" eval 'wait_for "[ \$(xy vm-list | grep -c \" running \") = $(wc -l </tmp/domains.before) ]" 20 || ! xy vm-list'
    check "$1: their disks are attached" eval 'losetup -a | sed "s/:.*(/ (/" | sort | diff /tmp/loops.before -'
}

start_xylemd
unikernel_cfg pv "type = 'pv'" "disk = ['/disk-a.raw,raw,xvda,w']" "vif = ['bridge=xenbr0']" "extra = 'xylem.quiet'"
unikernel_cfg pvh "type = 'pvh'" "disk = ['/disk-b.raw,raw,xvda,w', '/disk-c.raw,raw,xvdb,r']" "extra = 'xylem.quiet'"
unikernel_cfg kept "type = 'pv'" "extra = 'xylem.quiet'"
cat >/tmp/hvm.cfg <<'END'
name = 'hvm'
type = 'hvm'
memory = 64
disk = ['/root/disk.img,raw,hda,w']
END
check "define" xy define /tmp/kept.cfg
check "start" xy start kept
for vm in pv pvh hvm; do check "create $vm" xy create -q /tmp/$vm.cfg; done
domains >/tmp/domains.before
losetup -a | sed 's/:.*(/ (/' | sort >/tmp/loops.before
cat /tmp/domains.before
[ "$(wc -l </tmp/domains.before)" = 4 ] || fail "not all run: $(cat /tmp/domains.before)"

switch other
unchanged "the other release takes over"
check "the other release changes a VM" xy block-attach pv /disk-d.raw,raw,xvdb,w
check "and starts one" eval 'unikernel_cfg theirs "type = '"'pv'"'" "extra = '"'xylem.quiet'"'" && xy create -q /tmp/theirs.cfg'
domains >/tmp/domains.before
losetup -a | sed 's/:.*(/ (/' | sort >/tmp/loops.before

switch ours
unchanged "this release takes over again"
check "what the other attached is known" eval '[ "$(xy block-list pv | tail -n +2 | wc -l)" = 2 ]'

switch other
unchanged "the other release takes over once more"
switch ours
unchanged "and this one"

# A record of a release to come.
record=/xylem/vm/$(xy vm-list | awk '$1 == "pv" { print $2 }')
xenstore-write "$record/format" 99 "$record/config-0" '{ "name": "pv" }'
xenstore-ls -f "$record" >/tmp/record.before
switch ours
check "a later record: the same domains run" eval 'domains | diff /tmp/domains.before -'
check "a later record: it is stuck, with the reason" eval 'xy vm-list | grep "^pv .* stuck .*format 99"'
check "a later record: it stays as it is" eval 'xenstore-ls -f "$record" | diff /tmp/record.before -'
cat >>/tmp/pv.cfg <<'END'
disk = ['/disk-a.raw,raw,xvda,w', '/disk-d.raw,raw,xvdb,w']
END
check "a later record: it is adopted by its file" xy adopt --config /tmp/pv.cfg pv
check "a later record: it is a running VM again" eval 'xy vm-list | grep "^pv .* running "'
for vm in pv pvh hvm kept theirs; do check "destroy $vm" xy destroy $vm; done
check "nothing is attached" eval '[ -z "$(losetup -a)" ]'
check "no record is left but of what is defined" eval '[ -z "$(xenstore-list /xylem/vm 2>/dev/null)" ]'
