import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;

/** Apache's producer under so many threads: `Sends NAME_SERVER THREADS TOTAL` prints sends a second, and processor
 *  microseconds for each, warmed up. */
public class Sends {
    public static void main(String[] arguments) throws Exception {
        int threads = Integer.parseInt(arguments[1]), total = Integer.parseInt(arguments[2]);
        DefaultMQProducer producer = new DefaultMQProducer("PG");
        producer.setNamesrvAddr(arguments[0]);
        producer.start();
        run(producer, threads, total / 2);
        OperatingSystemMXBean system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        long before = system.getProcessCpuTime();
        double rate = run(producer, threads, total);
        System.out.printf("%.0f %.2f%n", rate, (system.getProcessCpuTime() - before) * 1e-3 / total);
        System.out.flush();
        System.exit(0);
    }

    private static double run(DefaultMQProducer producer, int threads, int total) throws Exception {
        CountDownLatch done = new CountDownLatch(threads);
        long start = System.nanoTime();
        for (int number = 0; number < threads; number++) {
            new Thread(() -> {
                try {
                    for (int count = 0; count < total / threads; count++) {
                        producer.send(new Message("TopicTest", new byte[128]));
                    }
                } catch (Exception error) {
                    error.printStackTrace();
                    System.exit(1);
                }
                done.countDown();
            }).start();
        }
        done.await();
        return total / ((System.nanoTime() - start) * 1e-9);
    }
}
