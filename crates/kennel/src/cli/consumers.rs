//! `consumers`: readers of events that have a name.

use super::{
    link::{Link, print, print_exact, refused},
    words,
};
use crate::{
    args::{ConsumerRef, ConsumersCommand, Format},
    failure::Failure,
    terminal_text,
};
use kennel_client::outlast;
use kennel_proto::{json, pb};
use std::fmt::Write as _;

/// Most that a server gives at once.
const PAGE_SIZE: i32 = 1000;

pub(crate) async fn consumers(link: &Link, command: ConsumersCommand) -> Result<(), Failure> {
    match command {
        ConsumersCommand::Ls { run } => list(link, run.unwrap_or_default()).await,
        ConsumersCommand::Get(ConsumerRef { name, run }) => {
            let request = pb::GetConsumerRequest {
                run_id: run.unwrap_or_default(),
                consumer: name,
            };
            let asked = outlast(|| {
                let (mut processes, request) = (link.connection.processes(), request.clone());
                async move { processes.get_consumer(request).await }
            });
            show(link, asked.await.map_err(refused)?.consumer)
        }
        ConsumersCommand::Rm(ConsumerRef { name, run }) => {
            let request = pb::DeleteConsumerRequest {
                run_id: run.unwrap_or_default(),
                consumer: name,
            };
            let mut processes = link.connection.processes();
            let deleted = processes.delete_consumer(request).await;
            show(link, deleted.map_err(refused)?.into_inner().consumer)
        }
    }
}

fn show(link: &Link, consumer: Option<pb::Consumer>) -> Result<(), Failure> {
    let consumer = consumer.unwrap_or_default();
    link.print(
        || json::to_string(&consumer),
        || table(std::slice::from_ref(&consumer)),
    )
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
        let page = link.connection.processes().list_consumers(request).await;
        let page = page.map_err(refused)?.into_inner();
        found.extend(page.consumers);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    match link.format {
        Format::Json => {
            let lines = found.iter().map(|found| json::to_string(found) + "\n");
            print_exact(&lines.collect::<String>())
        }
        Format::Text => print(&table(&found)),
    }
}

fn table(consumers: &[pb::Consumer]) -> String {
    let of = |consumer: &pb::Consumer| match &*consumer.run_id {
        "" => "many runs".to_owned(),
        run => run.to_owned(),
    };
    let names = consumers.iter().map(|consumer| consumer.name.len());
    let width = names.max().unwrap_or(0).max("NAME".len());
    let mut text = format!("{:<width$}  {:<26}  {:<5}  ACKED\n", "NAME", "RUN", "STATE");
    for consumer in consumers {
        let state = words::consumer_state(consumer.state());
        let acked = consumer
            .acked_seq
            .map_or("-".to_owned(), |seq| seq.to_string());
        let (name, run) = (terminal_text::one_line(&consumer.name), of(consumer));
        let _ = writeln!(text, "{name:<width$}  {run:<26}  {state:<5}  {acked}");
    }
    text
}
