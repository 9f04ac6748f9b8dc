//! An etcd whose quota is reached: those that commit without blocking wait, others go on, and it is said what to do.

mod support;

use caliburn_dist::bank::FIRST;
use caliburn_dist::client::{Error, Options};
use caliburn_dist::commit::word::{Incarnation, Node as NodeId, Participants, Protocol, Slot, Stay};
use caliburn_dist::host::Role;
use caliburn_dist::id::Tid;
use caliburn_dist::keep::Claim;
use caliburn_dist::keep::Known;
use caliburn_dist::keep::etcd::{Etcd, KeepError};
use caliburn_dist::keep::keeper::Keeper;
use caliburn_dist::keep::members::{Members, MembersError};
use caliburn_dist::proto::etcd::alarm_request::AlarmAction;
use caliburn_dist::proto::etcd::kv_client::KvClient;
use caliburn_dist::proto::etcd::maintenance_client::MaintenanceClient;
use caliburn_dist::proto::etcd::{
    AlarmMember, AlarmRequest, AlarmType, CompactionRequest, DefragmentRequest, DeleteRangeRequest,
    PutRequest, RequestOp, TxnRequest, request_op,
};
use std::time::{Duration, Instant};
use support::{BOTH, World, add};
use tonic::transport::{Channel, Endpoint};

/// Puts something of another program's until there is no room.
async fn fill(etcd: &Channel) {
    let until = Instant::now() + Duration::from_secs(60);
    for number in 0u64.. {
        let put = PutRequest { key: format!("junk/{number}").into(), value: vec![7; 1 << 20], lease: 0 };
        let put = RequestOp { request: Some(request_op::Request::RequestPut(put)) };
        let txn = TxnRequest { success: vec![put], ..TxnRequest::default() };
        match KvClient::new(etcd.clone()).txn(txn).await {
            Err(status) if status.message().contains("space exceeded") => return,
            // It may have no leader yet.
            _ => assert!(Instant::now() < until, "it has no end"),
        }
    }
}

/// What an administrator does then.
async fn make_room(etcd: &Channel) {
    let (key, range_end) = (b"junk/".to_vec(), b"junk0".to_vec());
    let mut kv = KvClient::new(etcd.clone());
    let deleted = kv.delete_range(DeleteRangeRequest { key, range_end }).await.unwrap().into_inner();
    let revision = deleted.header.unwrap().revision;
    kv.compact(CompactionRequest { revision, physical: true }).await.unwrap();
    let mut maintenance = MaintenanceClient::new(etcd.clone());
    maintenance.defragment(DefragmentRequest {}).await.unwrap();
    let alarm = AlarmType::Nospace as i32;
    let get = AlarmRequest { action: AlarmAction::Get as i32, member_id: 0, alarm };
    for AlarmMember { member_id, alarm } in maintenance.alarm(get).await.unwrap().into_inner().alarms {
        let disarm = AlarmRequest { action: AlarmAction::Deactivate as i32, member_id, alarm };
        maintenance.alarm(disarm).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_that_is_full_is_named_and_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let members = match Members::start_with_quota(1, dir.path(), 16 << 20) {
        Ok(members) => members,
        Err(error @ MembersError::NotInstalled) => return println!("not run: {error}"),
        Err(error) => panic!("{error}"),
    };
    let address = members.addresses().swap_remove(0);
    let keeper = Keeper::Etcd(Etcd::new([address.as_str()], "test").unwrap());
    let until = Instant::now() + Duration::from_secs(60);
    while let Err(error) = keeper.of(NodeId(1)).await {
        assert!(Instant::now() < until, "{error}");
    }
    let world = World::built(2, |node| node.keeper(keeper.clone())).await;
    let etcd = Endpoint::from_shared(address).unwrap().connect().await.unwrap();
    fill(&etcd).await;
    let tid = Tid {
        coordinator: NodeId(9),
        incarnation: Incarnation(1),
        client: 1,
        serial: 1,
        protocol: Protocol::Slots,
    };
    let participants: Participants = [(NodeId(9), Stay(1))].into();
    let (by, life, role, slot) = (NodeId(1), Incarnation(1), Role::Participant, Slot::Closed);
    let claim = Claim { tid, by, life, role, participants, of: NodeId(9), slot };
    let refused = keeper.put(&claim, &Known::default()).await.unwrap_err();
    assert!(matches!(refused, KeepError::Full(_)), "{refused}");
    assert!(refused.to_string().contains("etcdctl alarm disarm"), "{refused}");
    // Nobody can say how it ends.
    let application = world.application(1).await;
    let slots = Options { blocking: false, time_out: Duration::from_secs(1) };
    let waits = application.transact_with(slots, async |tx| {
        add(tx, 1, 1, 5, 11).await?;
        add(tx, 2, 1, -5, 11).await
    });
    assert!(matches!(waits.await, Err(Error::Unknown(..))));
    // Others have nothing to do with it.
    let others = application.transact_with(BOTH[0], async |tx| {
        add(tx, 1, 2, 5, 12).await?;
        add(tx, 2, 2, -5, 12).await
    });
    assert_eq!(others.await.unwrap(), FIRST - 5);
    make_room(&etcd).await;
    // Waits for the locks of the one that waits.
    let totals = world.totals().await;
    assert_eq!(totals[0].receipts, totals[1].receipts, "all or nothing");
    assert_eq!(totals[0].amount + totals[1].amount, 2 * i64::from(caliburn_dist::bank::ACCOUNTS) * FIRST);
    let again = application.transact_with(slots, async |tx| {
        add(tx, 1, 1, 5, 13).await?;
        add(tx, 2, 1, -5, 13).await
    });
    again.await.unwrap();
    world.stop().await;
}
