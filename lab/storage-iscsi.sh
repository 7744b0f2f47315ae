# An iSCSI target (tgt) in dom0, and open-iscsi's daemon: . /lab/storage-iscsi.sh
#
# $luns names the files that are its LUNs, from 1 on.

target=iqn.2001-04.com.example:disks

add_lun() { tgtadm --lld iscsi --mode logicalunit --op new --tid 1 --lun "$1" -b "$2"; }

find_again() {
    tgtd -f >>/results/tgtd.log 2>&1 </dev/null &
    tgtd_pid=$!
    wait_for 'tgtadm --lld iscsi --mode sys --op show' 60 || fail "tgtd does not answer"
    tgtadm --lld iscsi --mode target --op new --tid 1 -T $target || fail "no target"
    number=0
    for file in $luns; do
        number=$((number + 1))
        add_lun $number "$file" || fail "no LUN $number"
    done
    tgtadm --lld iscsi --mode target --op bind --tid 1 -I ALL
}
lose() {
    kill -9 $tgtd_pid
    wait $tgtd_pid 2>/dev/null
}

sessions() { ls /sys/class/iscsi_session; }

start_iscsi() {
    modprobe -a ext4 sd_mod iscsi_tcp || fail "no iSCSI"
    mkdir -p /run/lock/iscsi
    echo "InitiatorName=iqn.2001-04.com.example:lab" >/etc/iscsi/initiatorname.iscsi
    # iscsid obeys the user of this name.
    echo 'root:x:0:0:root:/root:/bin/sh' >/etc/passwd
    find_again
    iscsid || fail "iscsid does not start"
}
