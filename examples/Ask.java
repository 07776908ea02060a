// Writes a question to Kafka and waits for its answer; needs Java 17 and the jars of Kafka:
//     java -cp "$KAFKA_HOME/libs/*" examples/Ask.java client.properties "Who wrote Moby-Dick?" hyde
// The last word is a workflow, and may be left out: a name, or a graph as JSON: {"graph": ...}.
// client.properties has the settings of Kafka's Java clients: bootstrap.servers=127.0.0.1:9092 and
// those of the brokers' security, such as security.protocol=SASL_SSL.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.UUID;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class Ask {
    static final String QUERIES = "rag.queries.v1";
    static final String ANSWERS = "rag.answers.v1";
    static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] args) throws Exception {
        Properties client = new Properties();
        try (Reader file = Files.newBufferedReader(Path.of(args[0]))) {
            client.load(file);
        }
        String question = args[1];
        String workflow = args.length > 2 ? args[2] : "one_shot";
        try (KafkaConsumer<String, String> answers = readerAtTheEnd(client)) {
            String id = UUID.randomUUID().toString();
            RecordMetadata place = publish(client, id, question, workflow);
            JsonNode answer = await(answers, id, place, Duration.ofSeconds(120));
            System.out.println(answer.get("status").asText() + ": " + answer.path("answer").asText());
            for (JsonNode citation : answer.path("citations")) {
                boolean isSupported = citation.has("quote");
                System.out.println("[" + citation.get("n") + "] by the " + citation.path("by").asText()
                        + (isSupported ? ": " : ", without support: ") + citation.path("title").asText()
                        + ": " + citation.path("snippet").asText());
            }
        }
        System.exit(0);
    }

    static Properties with(Properties client, String name, String value) {
        Properties settings = new Properties();
        settings.putAll(client);
        settings.put(name, value);
        return settings;
    }

    /** Reads every partition from its end, without a consumer group, before anything is asked. */
    static KafkaConsumer<String, String> readerAtTheEnd(Properties client) {
        KafkaConsumer<String, String> reader = new KafkaConsumer<>(
                with(client, "isolation.level", "read_committed"),
                new StringDeserializer(), new StringDeserializer());
        List<TopicPartition> partitions = reader.partitionsFor(ANSWERS).stream()
                .map(each -> new TopicPartition(each.topic(), each.partition())).toList();
        reader.assign(partitions);
        reader.seekToEnd(partitions);
        partitions.forEach(reader::position);  // seeking is lazy: ask for the ends now
        return reader;
    }

    static RecordMetadata publish(Properties client, String id, String question, String workflow)
            throws Exception {
        Object named = workflow.startsWith("{") ? JSON.readTree(workflow) : workflow;
        String query = JSON.writeValueAsString(
                Map.of("text", question, "top_k", 3, "workflow", named));
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(
                with(client, "acks", "all"),
                new StringSerializer(), new StringSerializer())) {
            ProducerRecord<String, String> record = new ProducerRecord<>(QUERIES, id, query);
            record.headers().add("ce_id", id.getBytes("UTF-8"));  // the query_id
            return producer.send(record).get();
        }
    }

    /** Returns the answer to the record at `place`: an id may be asked twice, a record is unique. */
    static JsonNode await(
            KafkaConsumer<String, String> answers, String id, RecordMetadata place, Duration atMost)
            throws Exception {
        Instant until = Instant.now().plus(atMost);
        while (Instant.now().isBefore(until)) {
            for (var record : answers.poll(Duration.ofMillis(500))) {
                if (String.valueOf(record.key()).startsWith(id)) {  // or id@topic/partition/offset
                    JsonNode answer = JSON.readTree(record.value());
                    JsonNode source = answer.get("source");
                    if (source.get("partition").asInt() == place.partition()
                            && source.get("offset").asLong() == place.offset()) {
                        return answer;
                    }
                }
            }
        }
        throw new IllegalStateException("no answer to " + id + " within " + atMost);
    }
}
