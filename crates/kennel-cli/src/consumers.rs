//! `consumers`: named readers of events.

use super::{
    link::Link,
    table::{self, Cell},
    words,
};
use crate::{
    args::{ConsumerRef, ConsumersCommand},
    failure::Failure,
};
use kennel_proto::pb;

/// Most consumers that a server returns at once.
const PAGE_SIZE: i32 = 1000;

pub(crate) async fn consumers(link: &Link, command: ConsumersCommand) -> Result<(), Failure> {
    match command {
        ConsumersCommand::Ls { run } => {
            list(link, link.run_id_or_none(run.as_deref()).await?).await
        }
        ConsumersCommand::Get(ConsumerRef { name, run, owner }) => {
            let request = pb::GetConsumerRequest {
                run_id: link.run_id_or_none(run.as_deref()).await?,
                consumer: name,
                owner: owner.unwrap_or_default(),
            };
            show(link, link.call(request).await?.consumer)
        }
        ConsumersCommand::Rm(ConsumerRef { name, run, owner }) => {
            let request = pb::DeleteConsumerRequest {
                run_id: link.run_id_or_none(run.as_deref()).await?,
                consumer: name,
                owner: owner.unwrap_or_default(),
            };
            show(link, link.call(request).await?.consumer)
        }
    }
}

fn show(link: &Link, consumer: Option<pb::Consumer>) -> Result<(), Failure> {
    let consumer = consumer.unwrap_or_default();
    link.print(&consumer, || table(std::slice::from_ref(&consumer)))
}

async fn list(link: &Link, run_id: String) -> Result<(), Failure> {
    let mut found = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = pb::ListConsumersRequest {
            run_id: run_id.clone(),
            page_size: PAGE_SIZE,
            page_token,
        };
        let page = link.call(request).await?;
        found.extend(page.consumers);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    link.print_all(&found, || table(&found))
}

fn table(consumers: &[pb::Consumer]) -> String {
    let row = |consumer: &pb::Consumer| {
        let run = match &*consumer.run_id {
            "" => "many runs",
            run => run,
        };
        vec![
            Cell::from(&consumer.name),
            Cell::from(&consumer.owner),
            Cell::from(run),
            Cell::from(words::consumer_state(consumer.state())),
            Cell::or_dash(consumer.acked_seq),
        ]
    };
    let rows = consumers.iter().map(row).collect();
    table::table(&["NAME", "OWNER", "RUN", "STATE", "ACKED"], rows, false)
}
