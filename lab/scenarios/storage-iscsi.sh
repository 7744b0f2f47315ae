# lab-addition: iscsi
# The storage suite on LUNs of a real iSCSI target, each a VDI.
. /lab/lib.sh
. /lab/storage.sh
. /lab/storage-iscsi.sh
luns="/tmp/lun1 /tmp/lun2 /tmp/lun3"
for file in $luns; do truncate -s 4M "$file"; done
start_iscsi
start_xylemd

storage_one=s:lun1
storage_copy=s:lun2
storage_read=s:lun3
put() { dd if=/guest/disk.img "of=/tmp/${1#*:}" conv=notrunc 2>/dev/null; }
enlarge() {
    number=${1#*:lun}
    tgtadm --lld iscsi --mode logicalunit --op delete --tid 1 --lun "$number"
    truncate -s 8M "/tmp/lun$number"
    add_lun "$number" "/tmp/lun$number"
}
can() {
    case $1 in
        # All that is the server's. No program serves the LUNs on this side.
        create | snapshot | snapshot_while_written | grow | grow_while_written | fill_up | kill_driver | outlive_*) return 1 ;;
    esac
}

storage_suite iscsi server=127.0.0.1 target=$target
check "what the guest wrote is on the server" [ "$(mounted_text /tmp/lun1 loop)" = "written by a guest" ]
check "no session is left" [ -z "$(sessions)" ]
check "no record of the target is left" [ -z "$(find /etc/iscsi/nodes /run/xylem/iscsi -type f)" ]
